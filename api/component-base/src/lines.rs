//! Splits a byte stream into lines, such as the events of a watch.

use bytes::{Buf, Bytes, BytesMut};

/// A line exceeds the limit of its [`LineBuffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {max_line_bytes} bytes")]
pub struct LineTooLong {
    pub max_line_bytes: usize,
}

/// Assembles lines from chunks of any size. Each byte is searched for a line feed once, however many chunks a line spans.
///
/// If all complete lines are removed before the next chunk is added, the buffer contains at most one line of the
/// maximum length and one chunk.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: BytesMut,
    /// Number of bytes at the start of the buffer in which no line feed was found.
    searched_bytes: usize,
    max_line_bytes: usize,
}

impl LineBuffer {
    /// `max_line_bytes` is the maximum length of a line without its line feed; `usize::MAX`: unlimited.
    pub fn new(max_line_bytes: usize) -> Self {
        Self { bytes: BytesMut::new(), searched_bytes: 0, max_line_bytes }
    }

    /// Adds a chunk of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
    }

    /// Removes the next line and returns it without its line feed; `None` if the line is incomplete. The incomplete last line of a
    /// stream is therefore never returned.
    ///
    /// # Errors
    ///
    /// The next line, even if it is incomplete, is longer than the limit. It stays in the buffer, so further calls fail too.
    pub fn next_line(&mut self) -> Result<Option<Bytes>, LineTooLong> {
        let line_feed = memchr::memchr(b'\n', &self.bytes[self.searched_bytes..]).map(|at| self.searched_bytes + at);
        self.searched_bytes = line_feed.unwrap_or(self.bytes.len());
        if self.searched_bytes > self.max_line_bytes {
            return Err(LineTooLong { max_line_bytes: self.max_line_bytes });
        }
        let Some(length) = line_feed else { return Ok(None) };
        let line = self.bytes.split_to(length).freeze();
        self.bytes.advance(1);
        self.searched_bytes = 0;
        Ok(Some(line))
    }

    /// Removes the rest of the buffer: the incomplete last line, after all complete lines have been removed.
    pub fn take_rest(&mut self) -> Bytes {
        self.searched_bytes = 0;
        self.bytes.split().freeze()
    }

    /// Number of bytes in the buffer.
    pub fn buffered_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// The complete lines of a stream, and the number of bytes left in the buffer.
    fn split(chunks: &[&str], max_line_bytes: usize) -> Result<(Vec<String>, usize), LineTooLong> {
        let (mut buffer, mut lines) = (LineBuffer::new(max_line_bytes), Vec::new());
        for chunk in chunks {
            buffer.push(chunk.as_bytes());
            while let Some(line) = buffer.next_line()? {
                lines.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        Ok((lines, buffer.buffered_bytes()))
    }

    #[rstest]
    #[case::nothing(&[], &[], 0)]
    #[case::line_in_two_chunks(&["{\"a\":1}\n{\"b\"", ":2}\n"], &["{\"a\":1}", "{\"b\":2}"], 0)]
    #[case::line_feed_in_its_own_chunk(&["a", "\n", "b", "\n"], &["a", "b"], 0)]
    #[case::empty_line(&["a\n\nb\n"], &["a", "", "b"], 0)]
    #[case::incomplete_last_line(&["a\nbc", "d"], &["a"], 3)]
    #[case::many_lines_in_a_chunk_above_the_limit(&["1234\n1234\n1234\n"], &["1234", "1234", "1234"], 0)]
    fn lines_are_assembled_from_chunks(
        #[case] chunks: &[&str],
        #[case] expected: &[&str],
        #[case] buffered_bytes: usize,
    ) {
        let expected = expected.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(split(chunks, 8), Ok((expected, buffered_bytes)));
    }

    #[rstest]
    #[case::complete_lines("a\n", "")]
    #[case::incomplete_last_line("a\nbc", "bc")]
    fn the_rest_of_a_stream_is_its_incomplete_last_line(#[case] stream: &str, #[case] rest: &str) {
        let mut buffer = LineBuffer::new(8);
        buffer.push(stream.as_bytes());
        assert_eq!(buffer.next_line(), Ok(Some(Bytes::from_static(b"a"))));
        assert_eq!(buffer.next_line(), Ok(None));
        assert_eq!((buffer.take_rest(), buffer.buffered_bytes()), (Bytes::copy_from_slice(rest.as_bytes()), 0));
        // The buffer can be used for another stream.
        buffer.push(b"\nd\n");
        assert_eq!(buffer.next_line(), Ok(Some(Bytes::new())));
        assert_eq!(buffer.next_line(), Ok(Some(Bytes::from_static(b"d"))));
    }

    #[rstest]
    #[case::complete("12345678\n", true)]
    #[case::complete_and_too_long("123456789\n", false)]
    #[case::incomplete("12345678", true)]
    #[case::incomplete_and_too_long("123456789", false)]
    fn the_length_of_a_line_is_limited(#[case] line: &str, #[case] is_accepted: bool) {
        let mut buffer = LineBuffer::new(8);
        buffer.push(b"first\n");
        buffer.push(line.as_bytes());
        assert_eq!(buffer.next_line(), Ok(Some(Bytes::from_static(b"first"))));
        assert_eq!(buffer.next_line().is_ok(), is_accepted);
        assert_eq!(buffer.next_line().is_ok(), is_accepted, "a line that is too long stays in the buffer");
        assert!(split(&[line], usize::MAX).is_ok());
    }
}
