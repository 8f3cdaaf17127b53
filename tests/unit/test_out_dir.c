/* A directory that is filled whole or not at all. */
#include "engine/load/out_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/model_files.h"

static size_t n_files(const char *path) {
    DIR *d = opendir(path);
    if (!d) return SIZE_MAX;
    size_t n = 0;
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static struct out_dir *create(const char *path) {
    struct out_dir *dir = NULL;
    struct err err = {0};
    if (out_dir_create(path, &dir, &err)) fail_msg("%s", err.msg);
    return dir;
}

static void refused(const char *path, const char *word) {
    struct out_dir *dir = NULL;
    struct err err = {0};
    assert_int_equal(out_dir_create(path, &dir, &err), ERR_IO);
    assert_null(dir);
    if (!strstr(err.msg, word) || !strstr(err.msg, path)) fail_msg("%s", err.msg);
}

static void what_exists_is_never_touched(void **state) {
    (void)state;
    const char *base = keep(scratch_dir());
    write_text(base, "file", "x");
    refused(base, "not empty");
    refused(path_in(base, "file"), "no directory");
    refused(path_in(base, "no/such/parent"), "No such file");
    assert_int_equal(n_files(base), 1);

    /* Nor a file that appears while the directory is filled. */
    const char *path = keep(path_in(base, "out"));
    struct out_dir *dir = create(path);
    write_text(path, "theirs", "y");
    struct err err = {0};
    assert_int_equal(out_dir_write(dir, "theirs", "z", 1, &err), ERR_IO);
    assert_non_null(strstr(err.msg, "theirs"));
    assert_int_equal(out_dir_write(dir, "ours", "z", 1, &err), OK);
    out_dir_destroy(dir);
    assert_int_equal(n_files(path), 1);
    char *text = read_file(path_in(path, "theirs"), NULL);
    assert_string_equal(text, "y");
    free(text);
}

static void without_commit_nothing_is_left(void **state) {
    (void)state;
    const char *base = keep(scratch_dir());
    for (int there = 0; there < 2; there++) {
        const char *path = keep(path_in(base, there ? "there" : "new"));
        if (there) assert_int_equal(mkdir(path, 0755), 0);
        struct out_dir *dir = create(path);
        struct err err;
        int fd;
        assert_int_equal(out_dir_write(dir, "a", "1", 1, &err), OK);
        assert_int_equal(out_dir_open(dir, "b", &fd, &err), OK);
        assert_int_equal(out_dir_pwrite(fd, "23", 2, 5, "b", &err), OK);
        assert_int_equal(n_files(path), 2);
        close(fd);
        out_dir_destroy(dir);
        assert_int_equal(n_files(path), there ? 0 : SIZE_MAX); /* ours is gone, theirs stays */
    }
}

static void commit_keeps_everything(void **state) {
    (void)state;
    const char *path = keep(path_in(keep(scratch_dir()), "out"));
    struct out_dir *dir = create(path);
    struct err err;
    assert_int_equal(out_dir_write(dir, "a", "1", 1, &err), OK);
    assert_int_equal(out_dir_commit(dir, "config.json", "{}", 2, &err), OK);
    out_dir_destroy(dir);
    assert_int_equal(n_files(path), 2); /* and no config.json.part */
    char *text = read_file(path_in(path, "config.json"), NULL);
    assert_string_equal(text, "{}");
    free(text);
}

/* The last name cannot be had: a directory took it. */
static void a_commit_that_fails_leaves_nothing(void **state) {
    (void)state;
    const char *path = keep(path_in(keep(scratch_dir()), "out"));
    struct out_dir *dir = create(path);
    struct err err = {0};
    assert_int_equal(out_dir_write(dir, "a", "1", 1, &err), OK);
    assert_int_equal(mkdir(path_in(path, "config.json"), 0755), 0);
    assert_int_equal(out_dir_commit(dir, "config.json", "{}", 2, &err), ERR_IO);
    assert_non_null(strstr(err.msg, "config.json"));
    out_dir_destroy(dir);
    assert_int_equal(n_files(path), 1);
}

static void a_directory_renamed_meanwhile_is_still_the_one(void **state) {
    (void)state;
    const char *base = keep(scratch_dir());
    const char *path = keep(path_in(base, "out")), *moved = keep(path_in(base, "moved"));
    struct out_dir *dir = create(path);
    struct err err;
    assert_int_equal(out_dir_write(dir, "a", "1", 1, &err), OK);
    assert_int_equal(rename(path, moved), 0);
    assert_int_equal(out_dir_write(dir, "b", "2", 1, &err), OK);
    assert_int_equal(n_files(moved), 2);
    out_dir_destroy(dir);
    assert_int_equal(n_files(moved), 0);
}

static void a_write_beyond_the_limit_is_an_error(void **state) {
    (void)state;
    const char *path = keep(path_in(keep(scratch_dir()), "out"));
    struct out_dir *dir = create(path);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){4096, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    static const char data[8192];
    struct err err = {0};
    int rc = out_dir_write(dir, "a", data, sizeof data, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(err.msg, strerror(EFBIG)));
    out_dir_destroy(dir);
    assert_int_equal(n_files(path), SIZE_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_exists_is_never_touched),
        cmocka_unit_test(without_commit_nothing_is_left),
        cmocka_unit_test(commit_keeps_everything),
        cmocka_unit_test(a_commit_that_fails_leaves_nothing),
        cmocka_unit_test(a_directory_renamed_meanwhile_is_still_the_one),
        cmocka_unit_test(a_write_beyond_the_limit_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
