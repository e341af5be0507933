"""A line of input that tests of `hamr score` vary."""

ROW = {
    "id": "a",
    "ticket": {},
    "policy": "",
    "tools": [],
    "history": [{"role": "customer", "content": "hi"}],
    "references": [{"action": "reply", "content": "Hello there!"}],
}
