//! Cuts the elements of a list's `items` out of its JSON while it streams by.

use bytes::{BufMut, BytesMut};

/// Scans one JSON object; remembers its `kind` and `apiVersion`.
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
    pub kind: Option<String>,
    pub api_version: Option<String>,
}

/// Longest name or `kind` that is remembered.
const MAX_TEXT: usize = 256;

impl ItemsScanner {
    /// Appends to `out` what of `chunk` lies inside `items`, commas between elements included.
    pub fn feed(&mut self, chunk: &[u8], out: &mut BytesMut) {
        for byte in chunk {
            let inside = self.in_items;
            self.step(*byte);
            if inside && self.in_items {
                out.put_u8(*byte);
            }
        }
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
                    self.told();
                }
                return;
            }
            _ => {}
        }
        if self.depth == 1 && self.text.len() < MAX_TEXT {
            self.text.push(byte);
        }
    }

    fn told(&mut self) {
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
        r#"{"kind":"PodList","apiVersion":"v1","metadata":{"items":[9]},"items":[{"a":"]}\""},{"items":[1]}]}"#,
        r#"{"a":"]}\""},{"items":[1]}"#
    )]
    #[case(r#"{"items": [ 1 , [2] ], "kind": "X", "more": [3]}"#, " 1 , [2] ")]
    #[case(r#"{"items":[]}"#, "")]
    #[case(r#"{"items":null}"#, "")]
    #[case(r#"{"kind":"items","x":["no"]}"#, "")]
    fn items_are_cut_out_however_the_bytes_arrive(#[case] json: &str, #[case] expected: &str) {
        for size in [1, 3, 1000] {
            let (mut scanner, mut out) = (ItemsScanner::default(), BytesMut::new());
            for chunk in json.as_bytes().chunks(size) {
                scanner.feed(chunk, &mut out);
            }
            assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
        }
    }
}
