//! Progress output of `crowsnest up`: one line per step on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// Prints steps as they finish; coloured on terminals unless `NO_COLOR` is set.
#[derive(Debug)]
pub struct Progress {
    colour: bool,
    started: Instant,
}

impl Progress {
    pub fn new() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some() || std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        Self { colour: io::stderr().is_terminal() && !plain, started: Instant::now() }
    }

    /// Reports that a possibly long step has started.
    pub fn begin(&self, what: &str) {
        self.line(&format!("  … {what}"));
    }

    /// Reports that a step is done, with the time since the start.
    pub fn done(&self, what: &str) {
        self.done_since(what, self.started);
    }

    /// Reports that a step outside of the start is done, with its duration.
    pub fn done_since(&self, what: &str, began: Instant) {
        let ms = began.elapsed().as_millis();
        let tick = if self.colour { "\x1b[32m✓\x1b[0m" } else { "✓" };
        self.line(&format!("  {tick} {what} ({ms} ms)"));
    }

    /// Reports a problem that does not stop the start.
    pub fn warn(&self, what: &str) {
        let mark = if self.colour { "\x1b[33m!\x1b[0m" } else { "!" };
        self.line(&format!("  {mark} {what}"));
    }

    fn line(&self, text: &str) {
        // Output is best effort.
        let _ = writeln!(io::stderr(), "{text}");
    }
}
