"""Requests whose end two servers might see at different places, each written so that what one of
them takes for a body is a whole second request to the other. Rows are (name, bytes)."""

SECOND = b"GET /smuggled HTTP/1.1\r\nHost: smuggled\r\n\r\n"
JSON = b'{"prompt":"x","max_tokens":1}'
LAST = b"0\r\n\r\n"


def post(*lines, body=b"", version=b"1.1", host=b"Host: x\r\n", end=b"\r\n"):
    head = b"POST /v1/completions HTTP/" + version + b"\r\n" + host
    head += b"Content-Type: application/json\r\n"
    return head + b"".join(line + b"\r\n" for line in lines) + end + body


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


CHUNKED = b"Transfer-Encoding: chunked"
ALL = b"Content-Length: %d" % len(JSON + SECOND)    # the second request is body
FIRST = b"Content-Length: %d" % len(JSON)           # the second request stands alone
NONE = b"Content-Length: 0"
WHOLE = JSON + SECOND
PIECES = chunk(JSON) + LAST + SECOND                # chunked: the second request stands alone
LENGTH_OF_PIECES = b"Content-Length: %d" % len(PIECES)


def rows():
    # Content-Length beside Transfer-Encoding, either order.
    yield "length, then chunked", post(LENGTH_OF_PIECES, CHUNKED, body=PIECES)
    yield "chunked, then length", post(CHUNKED, LENGTH_OF_PIECES, body=PIECES)
    yield "length 4, then chunked", post(b"Content-Length: 4", CHUNKED, body=PIECES)
    yield "length 0, then chunked", post(NONE, CHUNKED, body=PIECES)
    # More than one length.
    yield "two lengths, short first", post(FIRST, ALL, body=WHOLE)
    yield "two lengths, long first", post(ALL, FIRST, body=WHOLE)
    yield "two equal lengths", post(FIRST, FIRST, body=WHOLE)
    yield "length 0 and a real one", post(NONE, ALL, body=WHOLE)
    yield "a list of lengths", post(FIRST + b", %d" % len(JSON), body=WHOLE)
    # Lengths that are no number.
    for name, value in [("plus", b"+29"), ("minus", b"-29"), ("hexadecimal", b"0x1d"), ("empty", b""),
                        ("two words", b"2 9"), ("a point", b"29.0"), ("letters", b"29a"),
                        ("2^64 + 29", b"18446744073709551645"), ("60 digits", b"9" * 60)]:
        yield f"length: {name}", post(b"Content-Length: " + value, body=WHOLE)
    # Transfer codings.
    for name, value in [("gzip", b"gzip"), ("gzip, chunked", b"gzip, chunked"),
                        ("chunked, gzip", b"chunked, gzip"), ("identity", b"identity"),
                        ("xchunked", b"xchunked"), ("chunkedx", b"chunkedx"), ("quoted", b'"chunked"'),
                        ("twice in one line", b"chunked, chunked"), ("vertical tab", b"\x0bchunked"),
                        ("with a parameter", b"chunked;a=b"), ("empty", b"")]:
        yield f"coding: {name}", post(b"Transfer-Encoding: " + value, body=PIECES)
    yield "coding: two lines", post(CHUNKED, CHUNKED, body=PIECES)
    yield "coding: chunked and identity", post(CHUNKED, b"Transfer-Encoding: identity", body=PIECES)
    yield "coding: gzip with a length", post(b"Transfer-Encoding: gzip", ALL, body=WHOLE)
    yield "coding in HTTP/1.0", post(CHUNKED, body=PIECES, version=b"1.0")
    # Names.
    yield "blank before the colon of a length", post(b"Content-Length : %d" % len(WHOLE), body=WHOLE)
    yield "blank before the colon of a coding", post(b"Transfer-Encoding : chunked", body=PIECES)
    yield "tab before the colon", post(b"Content-Length\t: %d" % len(WHOLE), body=WHOLE)
    yield "empty name", post(b": x", ALL, body=WHOLE)
    yield "no colon", post(b"Content-Length", FIRST, body=WHOLE)
    yield "NUL in a name", post(b"Content\0-Length: 4", ALL, body=WHOLE)
    # Folded lines.
    yield "a folded length", post(b"X: a", b" " + ALL, body=WHOLE)
    yield "a folded value of a length", post(b"Content-Length:", b" %d" % len(WHOLE), body=WHOLE)
    yield "a folded coding", post(b"X: a", b"\t" + CHUNKED, body=PIECES)
    yield "a folded first line", post(ALL, body=WHOLE, host=b" X: a\r\nHost: x\r\n")
    # Line ends and control bytes.
    yield "bare CR in a value", post(b"X: a\rContent-Length: %d" % len(WHOLE), body=WHOLE)
    yield "NUL in a value", post(b"X: a\0b", ALL, body=WHOLE)
    yield "bare LF before a length", post(b"X: a\nContent-Length: %d" % len(WHOLE), body=WHOLE)
    yield "bare LF before a coding", post(b"X: a\nTransfer-Encoding: chunked",
                                          body=chunk(JSON + SECOND) + LAST)
    yield "bare LF ends the head", post(ALL + b"\n", body=WHOLE, end=b"")
    # Hosts and versions.
    yield "no host", post(ALL, body=WHOLE, host=b"")
    yield "two hosts", post(ALL, body=WHOLE, host=b"Host: x\r\nHost: y\r\n")
    yield "HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECOND
    yield "HTTP/3.0", post(ALL, body=WHOLE, version=b"3.0")
    yield "HTTP/1.10", post(ALL, body=WHOLE, version=b"1.10")
    # Chunk sizes and chunk ends.
    for name, size in [("-2", b"-2"), ("80000000", b"80000000"), ("17 digits", b"FFFFFFFFFFFFFFFFF"),
                       ("2^64 - 1", b"FFFFFFFFFFFFFFFF"), ("0x5", b"0x5"), ("empty", b""),
                       ("+5", b"+5"), ("blank first", b" 5"), ("g", b"g")]:
        yield f"chunk size: {name}", post(CHUNKED, body=size + b"\r\n" + JSON + b"\r\n" + LAST + SECOND)
    yield "no line end after a chunk", post(CHUNKED, body=b"4\r\nabcd" + LAST + SECOND)
    yield "chunk longer than its size", post(CHUNKED, body=b"4\r\nabcdefgh\r\n" + LAST + SECOND)
    yield "bare LF after a chunk size", post(CHUNKED, body=b"%x\n" % len(WHOLE) + WHOLE + b"\r\n" + LAST)
    yield "bare CR after a chunk size", post(CHUNKED, body=b"%x\r" % len(JSON) + JSON + b"\r\n" + LAST)
    yield "a length in the trailer", post(CHUNKED, body=chunk(WHOLE) + b"0\r\n" + FIRST + b"\r\n\r\n")
    yield "LF in a chunk extension", post(CHUNKED, body=b"%x;a\nb\r\n" % len(WHOLE) + WHOLE + b"\r\n" + LAST)
