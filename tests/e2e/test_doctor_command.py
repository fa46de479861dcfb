"""`doctor` from a shell: one line a check, exit 0 with warnings only, 2 for what is set up wrongly."""

from tests.product import Product


def test_doctor(product: Product) -> None:
    done = product.run("doctor", "--json").ended(0)
    assert done.err == ""
    document = done.document
    assert document["error"] is None
    names = {one["name"] for one in document["checks"] if one["state"] == "ok"}
    assert {"config", "credentials", "table", "index", "projection", "bucket", "queue", "revision", "clock"} <= names
    done = product.run("doctor", objects__bucket=None).ended(2)
    assert "bucket objects.bucket" in done.error
    (line,) = [one for one in done.out.splitlines() if one.startswith("failed")]
    assert "To mend it: " in line
