//! Redirects of commands, and the files that they open.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use super::parse::{Redirect, RedirectTarget};
use super::{Clock, Flow, Shell, Stdio};
use crate::filesystem::{FileSystem, FsError, resolve};
use crate::stream::{DiscardingSink, Input, Output, Sink};

impl Shell {
    /// Opens a redirect and changes the file descriptors. The inner error is the message for stderr.
    pub(super) async fn open_redirect(
        &mut self,
        redirect: &Redirect,
        io: &mut Stdio,
        opened: &mut Vec<Output>,
    ) -> Result<Result<(), String>, Flow> {
        let (word, append) = match &redirect.target {
            RedirectTarget::Duplicate(fd) => {
                let output = if *fd == 2 { io.stderr.clone() } else { io.stdout.clone() };
                if redirect.fd == 2 {
                    io.stderr = output
                } else {
                    io.stdout = output
                }
                return Ok(Ok(()));
            }
            RedirectTarget::Read(word) => {
                let path = self.expand_word(word, io).await?;
                return Ok(match self.open(&path) {
                    Ok(input) => {
                        io.stdin = Arc::new(tokio::sync::Mutex::new(input));
                        Ok(())
                    }
                    Err(FsError::NotFound) => Err(format!("can't open {path}: no such file")),
                    Err(error) => Err(format!("can't open {path}: {error}")),
                });
            }
            RedirectTarget::Write(word) => (word, false),
            RedirectTarget::Append(word) => (word, true),
        };
        let path = self.expand_word(word, io).await?;
        let output = match self.create(&path, append, io) {
            Ok(output) => output,
            Err(error) => return Ok(Err(format!("can't create {path}: {error}"))),
        };
        opened.push(output.clone());
        if redirect.fd == 2 {
            io.stderr = output
        } else {
            io.stdout = output
        }
        Ok(Ok(()))
    }

    /// Opens a file for reading.
    pub(super) fn open(&self, path: &str) -> Result<Input, FsError> {
        match resolve(&self.cwd, path).as_str() {
            "/dev/null" => Ok(Input::empty()),
            path => Ok(Input::from_bytes(&self.fs.read(path)?)),
        }
    }

    /// Opens a file for writing.
    pub(super) fn create(&self, path: &str, append: bool, io: &Stdio) -> Result<Output, FsError> {
        let path = resolve(&self.cwd, path);
        match path.as_str() {
            "/dev/null" => return Ok(Arc::new(DiscardingSink)),
            "/dev/stdout" | "/proc/self/fd/1" => return Ok(io.stdout.clone()),
            "/dev/stderr" | "/proc/self/fd/2" => return Ok(io.stderr.clone()),
            "/proc/1/fd/1" | "/proc/1/fd/2" => return Ok(self.log.clone()),
            _ => {}
        }
        let now = self.clock.now();
        if append {
            self.fs.append(&path, b"", now)?
        } else {
            self.fs.write(&path, Bytes::new(), now)?
        }
        Ok(Arc::new(FileSink { fs: self.fs.clone(), clock: self.clock.clone(), path, pending: Mutex::default() }))
    }
}

/// Appends to a file in large chunks, since each append copies the file.
struct FileSink {
    fs: Arc<FileSystem>,
    clock: Arc<dyn Clock>,
    path: String,
    pending: Mutex<BytesMut>,
}

/// Maximum number of bytes buffered by a [`FileSink`].
const MAX_PENDING_BYTES: usize = 4 << 20;

impl FileSink {
    fn flush(&self) -> std::io::Result<()> {
        let pending = self.pending.lock().split();
        self.fs.append(&self.path, &pending, self.clock.now()).map_err(std::io::Error::other)
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn send(&self, data: Bytes) -> std::io::Result<()> {
        let is_full = {
            let mut pending = self.pending.lock();
            pending.extend_from_slice(&data);
            pending.len() >= MAX_PENDING_BYTES
        };
        if is_full { self.flush() } else { Ok(()) }
    }

    async fn finish(&self) -> std::io::Result<()> {
        self.flush()
    }
}
