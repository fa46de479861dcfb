import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatch.aws.session import decode_listing, decode_listing_tree

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
AWS = (
    "<Contents><Key>%s</Key><LastModified>2026-09-17T16:00:00.000Z</LastModified><ETag>&quot;%s&quot;</ETag>"
    "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType><Size>%d</Size>"
    "<StorageClass>STANDARD</StorageClass></Contents>"
)
OTHER = (
    "\n <Contents>\n <Key>%s</Key>\n <ETag>&#34;%s&#34;</ETag><Size>%d</Size><Owner><ID>1</ID></Owner>"
    "<LastModified>2026-09-17T16:00:00Z</LastModified></Contents>"
)
PAGE = "<Name>b</Name><Prefix>p</Prefix><IsTruncated>%s</IsTruncated><EncodingType>url</EncodingType>"
OBJECTS = st.lists(st.tuples(st.from_regex("[a-z0-9/.%+-]{1,9}", fullmatch=True), st.just("0a" * 16), st.integers(0)))


def document(shape: str, objects: list[tuple[str, str, int]], before: str = PAGE % "false") -> bytes:
    return f"{HEAD}{before}{''.join(shape % one for one in objects)}</ListBucketResult>".encode()


@given(shape=st.sampled_from([AWS, OTHER]), objects=OBJECTS, more=st.booleans())
def test_a_listing_reads_as_its_tree_does(shape: str, objects: list[tuple[str, str, int]], *, more: bool) -> None:
    before = PAGE % ("true" if more else "false")
    before += "<NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</NextContinuationToken>" * more
    body = document(shape, objects, before)
    page = decode_listing(body)
    assert page == decode_listing_tree(body)
    assert [(one["Key"], one["ETag"], int(one["Size"])) for one in page["Contents"]] == [
        (key, f'"{etag}"', size) for key, etag, size in objects
    ]
    assert page["IsTruncated"] is more


@pytest.mark.parametrize(
    "changed",
    [
        ("<Key>a</Key>", "<Key>a&amp;b</Key>"),
        ("<Key>a</Key>", "<Key>ä</Key>"),
        ("<Key>a</Key>", "<Key><![CDATA[a</Key><Key>]]></Key>"),
        ("<Key>a</Key>", "<Key/>"),
        ("<ETag>", '<ETag kind="md5">'),
        ("Contents>", "s3:Contents>"),
        ("<Contents>", "<Contents >"),
    ],
)
def test_what_is_written_otherwise_is_read_from_the_tree(changed: tuple[str, str]) -> None:
    body = document(AWS, [("a", "0", 1), ("z", "1", 2)])
    head = HEAD.encode()
    body = body.replace(head, head.replace(b"xmlns=", b'xmlns:s3="s3" xmlns='))
    body = body.replace(changed[0].encode(), changed[1].encode())
    page = decode_listing(body)
    assert page == decode_listing_tree(body)
    assert len(page["Contents"]) == 2


@given(st.text(st.sampled_from("<>/&;!Contents KyETagSize"), max_size=40))
@example("<Contents><Key>a</Key></Contents><Contents><Size>1</Size></Contents>")
def test_nothing_is_made_up_from_a_text_between(noise: str) -> None:
    escaped = noise.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    body = document(AWS, [("a", "0", 1)], PAGE % "false" + f"<StartAfter>{escaped}</StartAfter>")
    assert decode_listing(body) == decode_listing_tree(body)
