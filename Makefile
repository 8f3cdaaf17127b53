# Geryon. `make run` serves a chat model, `make test` proves it; `make help` lists the rest.
#
#   CONFIG=release (default) | debug | asan | tsan     objects live in build/$(CONFIG)/
#   V=1                                                prints the commands

CONFIG ?= release
B := build/$(CONFIG)
CC ?= gcc
PKGS := libmicrohttpd libuv jansson libpcre2-8 libutf8proc

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wundef -Wstrict-prototypes -Wmissing-prototypes \
        -Wpointer-arith -Wwrite-strings -Wformat=2
CFLAGS_release := -O2 -D_FORTIFY_SOURCE=2
CFLAGS_debug := -O1 -DGERYON_SLOW_CHECKS
CFLAGS_asan := -O1 -DGERYON_SLOW_CHECKS -fsanitize=address,undefined -fno-sanitize-recover=undefined \
               -fno-omit-frame-pointer
CFLAGS_tsan := -O1 -DGERYON_SLOW_CHECKS -fsanitize=thread
CFLAGS := -std=c11 -g $(CFLAGS_$(CONFIG)) -D_GNU_SOURCE $(WARN) $(if $(WERROR),-Werror) -fno-common \
          -fstack-protector-strong -ffp-contract=off -I. -MMD -MP \
          $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDLIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -lpthread -ldl
Q := $(if $(V),,@)

KERNELS := $(wildcard kernels/*.c kernels/cpu/*.c)
ENGINE := $(wildcard engine/*.c)
PROTO := $(wildcard proto/*.c)
SERVER := $(wildcard server/*.c)
SCRIPTED := $(wildcard tests/scripted/*.c)
UNIT := $(wildcard tests/unit/test_*.c) $(wildcard tests/prop/prop_*.c)
obj = $(patsubst %.c,$(B)/%.o,$(1))

# The product's objects, without the model loader (which the scripted binary replaces).
CORE := $(filter-out engine/model.c,$(KERNELS) $(ENGINE) $(PROTO))

.PHONY: all
all: build/geryon

build/geryon: $(B)/geryon
	$(Q)cp -f $< $@.tmp && mv -f $@.tmp $@
build/geryon-scripted: $(B)/geryon-scripted
	$(Q)cp -f $< $@.tmp && mv -f $@.tmp $@

# -rdynamic: the program's own MHD_queue_response must be found by libmicrohttpd (server/http.c).
$(B)/geryon: $(call obj,$(CORE) engine/model.c $(SERVER))
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $^ $(LDLIBS)
$(B)/geryon-scripted: $(call obj,$(CORE) $(SCRIPTED) $(SERVER))
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $^ $(LDLIBS)

# Instruction sets are chosen at start, so only the files that hold them get their flags.
%_avx2.o: EXTRA := -mavx2 -mfma -mf16c
$(B)/server/%.o: EXTRA := -DGERYON_COMMIT='"$(COMMIT)"'

$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  CC   $<"
	$(Q)$(CC) $(CFLAGS) $(EXTRA) -c -o $@ $<

# Unit and property tests link the whole product but main.c. A test whose name holds `scripted` or
# `prop_engine` links the scripted model in place of the loader.
TESTLIB := $(B)/libgeryon-test.a
$(TESTLIB): $(call obj,$(CORE) $(filter-out server/main.c,$(SERVER)) tests/harness.c)
	$(Q)rm -f $@ && ar rcs $@ $^
$(B)/tests/unit/test_%: $(B)/tests/unit/test_%.o $(B)/engine/model.o $(TESTLIB)
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $^ $(LDLIBS) -lcmocka
$(B)/tests/unit/test_scripted: $(B)/tests/unit/test_scripted.o $(call obj,$(SCRIPTED)) $(TESTLIB)
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $^ $(LDLIBS) -lcmocka
$(B)/tests/prop/prop_%: $(B)/tests/prop/prop_%.o $(call obj,$(SCRIPTED)) $(TESTLIB)
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $^ $(LDLIBS) -lcmocka

UNIT_BINS := $(patsubst %.c,$(B)/%,$(UNIT))
.PHONY: unit
unit: $(UNIT_BINS)

-include $(shell find build -name '*.d' 2>/dev/null)

.PHONY: clean
clean:
	rm -rf build
