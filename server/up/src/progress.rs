//! What `crowsnest up` tells while it starts: one line per step, on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// Prints steps as they finish. Colour only on a terminal that wants it.
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

    /// Tells that something started that may take a while.
    pub fn begin(&self, what: &str) {
        self.line(&format!("  … {what}"));
    }

    /// Tells that a step is done, with the time since the start.
    pub fn done(&self, what: &str) {
        self.done_since(what, self.started);
    }

    /// Tells that what is no part of the start is done, with the time since it began.
    pub fn done_since(&self, what: &str, began: Instant) {
        let ms = began.elapsed().as_millis();
        let tick = if self.colour { "\x1b[32m✓\x1b[0m" } else { "✓" };
        self.line(&format!("  {tick} {what} ({ms} ms)"));
    }

    /// Tells what is not as it was asked for, and does not keep the rest from working.
    pub fn warn(&self, what: &str) {
        let mark = if self.colour { "\x1b[33m!\x1b[0m" } else { "!" };
        self.line(&format!("  {mark} {what}"));
    }

    fn line(&self, text: &str) {
        // A closed standard error must not stop the fleet.
        let _ = writeln!(io::stderr(), "{text}");
    }
}
