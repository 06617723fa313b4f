//! Buffers of connections. Their memory is kept for reuse, so that a connection has none while it is idle.

use std::cell::RefCell;

/// Size of a buffer in bytes: four TLS records.
pub(crate) const BUFFER_SIZE: usize = 64 * 1024;
/// Buffers that each thread keeps for reuse.
const MAX_SPARE_BUFFERS: usize = 4;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer whose bytes are appended at the end and consumed from the start.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    /// Range of the filled bytes.
    start: usize,
    end: usize,
}

impl Buffer {
    /// An empty buffer, with spare memory of the thread if there is any.
    pub(crate) fn new() -> Self {
        let spare = SPARE_BUFFERS.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        Self { bytes: spare.unwrap_or_else(|| vec![0; BUFFER_SIZE].into_boxed_slice()), start: 0, end: 0 }
    }

    /// The bytes that were added and are not consumed yet.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The free space after the filled bytes.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Size of the space in bytes.
    pub(crate) fn space_bytes(&self) -> usize {
        self.bytes.len() - self.end
    }

    /// Adds `count` bytes that the caller has written to the start of the space.
    pub(crate) fn fill(&mut self, count: usize) {
        self.end += count;
    }

    /// Appends bytes. Panics if they are more than the space.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.space()[..bytes.len()].copy_from_slice(bytes);
        self.fill(bytes.len());
    }

    /// Removes bytes from the start.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        // The thread-local storage has been destroyed if the thread is ending; the memory is freed then.
        let _ = SPARE_BUFFERS.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MAX_SPARE_BUFFERS {
                spare.push(bytes);
            }
        });
    }
}
