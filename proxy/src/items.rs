//! Streaming scanner that extracts the complete elements of a list's `items` from its JSON.

/// Scans one JSON object and records its `kind` and `apiVersion`.
#[derive(Debug, Default)]
pub struct ItemsScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// At depth 1: the next string is a value, not a name.
    value: bool,
    text: Vec<u8>,
    name: Vec<u8>,
    in_items: bool,
    /// The received part of the current element.
    item: Vec<u8>,
    /// The end of the object was reached.
    ended: bool,
    pub kind: Option<String>,
    pub api_version: Option<String>,
}

/// Maximum recorded length of a name or `kind`.
const MAX_TEXT: usize = 256;
/// Maximum size of an element; API servers accept objects of half that size.
pub const MAX_ITEM: usize = 8 << 20;

/// An element is larger than [`MAX_ITEM`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an object is larger than {MAX_ITEM} bytes")]
pub struct TooLarge;

impl ItemsScanner {
    /// Calls `each` with the elements that `chunk` completes.
    pub fn feed(&mut self, chunk: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), TooLarge> {
        let mut from = 0;
        for (at, byte) in chunk.iter().enumerate() {
            let inside = self.in_items;
            let between = inside && !self.in_string && self.depth == 2 && *byte == b',';
            self.step(*byte);
            if inside && (between || !self.in_items) {
                self.append_item_part(&chunk[from..at])?;
                let item = self.item.trim_ascii();
                if !item.is_empty() {
                    each(item);
                }
                self.item.clear();
            }
            if between || inside != self.in_items {
                from = at + 1;
            }
        }
        if self.in_items { self.append_item_part(&chunk[from..]) } else { Ok(()) }
    }

    /// True if the whole object was received.
    pub fn is_whole(&self) -> bool {
        self.ended
    }

    fn append_item_part(&mut self, part: &[u8]) -> Result<(), TooLarge> {
        if self.item.len() + part.len() > MAX_ITEM {
            return Err(TooLarge);
        }
        self.item.extend_from_slice(part);
        Ok(())
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            return self.string(byte);
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.text.clear();
            }
            b'{' | b'[' => {
                self.in_items |= byte == b'[' && self.depth == 1 && self.value && self.name == b"items";
                self.depth += 1;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.in_items &= self.depth > 1;
                self.ended |= self.depth == 0;
            }
            b':' if self.depth == 1 => self.value = true,
            b',' if self.depth == 1 => self.value = false,
            _ => {}
        }
    }

    fn string(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => {
                self.in_string = false;
                if self.depth == 1 {
                    self.finish_string();
                }
                return;
            }
            _ => {}
        }
        if self.depth == 1 && self.text.len() < MAX_TEXT {
            self.text.push(byte);
        }
    }

    fn finish_string(&mut self) {
        if !self.value {
            self.name.clone_from(&self.text);
            return;
        }
        let text = || Some(String::from_utf8_lossy(&self.text).into_owned());
        match self.name.as_slice() {
            b"kind" => self.kind = text(),
            b"apiVersion" => self.api_version = text(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(
        r#"{"kind":"PodList","apiVersion":"v1","metadata":{"items":[9]},"items":[{"a":"],\""},{"items":[1,2]}]}"#,
        &[r#"{"a":"],\""}"#, r#"{"items":[1,2]}"#], true
    )]
    #[case(r#"{"items": [ 1 , [2, 3] ], "kind": "X", "more": [3]}"#, &["1", "[2, 3]"], true)]
    #[case(r#"{"items":[]}"#, &[], true)]
    #[case("{\"items\":[\n]}\n", &[], true)]
    #[case(r#"{"items":null}"#, &[], true)]
    #[case(r#"{"kind":"items","x":["no"]}"#, &[], true)]
    #[case(r#"{"items":[{"a":1},{"b":"#, &[r#"{"a":1}"#], false)]
    #[case(r#"{"items":[{"a":1}]"#, &[r#"{"a":1}"#], false)]
    #[case("", &[], false)]
    fn complete_items_are_extracted_from_any_chunks(
        #[case] json: &str,
        #[case] expected: &[&str],
        #[case] whole: bool,
    ) {
        for size in [1, 3, 1000] {
            let (mut scanner, mut items) = (ItemsScanner::default(), Vec::new());
            for chunk in json.as_bytes().chunks(size) {
                scanner.feed(chunk, |item| items.push(String::from_utf8(item.to_vec()).unwrap())).unwrap();
            }
            assert_eq!((items, scanner.is_whole()), (expected.iter().map(|i| (*i).to_owned()).collect(), whole));
        }
    }

    #[test]
    fn oversized_items_are_rejected() {
        let mut scanner = ItemsScanner::default();
        let chunk = vec![b'x'; MAX_ITEM];
        assert_eq!(scanner.feed(b"{\"items\":[\"", |_| ()), Ok(()));
        assert_eq!(scanner.feed(&chunk, |_| ()), Err(TooLarge));
    }
}
