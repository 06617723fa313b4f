//! Progress output of `crowsnest up`: one line per step on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// Prints steps as they finish; coloured on terminals unless `NO_COLOR` is set.
#[derive(Debug)]
pub struct Progress {
    has_color: bool,
    started: Instant,
}

impl Progress {
    pub fn new() -> Self {
        let is_plain = std::env::var_os("NO_COLOR").is_some() || std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        Self { has_color: io::stderr().is_terminal() && !is_plain, started: Instant::now() }
    }

    /// Reports that a possibly long step has started.
    pub fn begin(&self, step: &str) {
        self.print_line(&format!("  … {step}"));
    }

    /// Reports that a step of the start-up is done, with the time since the process started.
    pub fn report_done(&self, step: &str) {
        self.report_done_since(step, self.started);
    }

    /// Reports that a step after the start-up is done, with its duration.
    pub fn report_done_since(&self, step: &str, start: Instant) {
        let ms = start.elapsed().as_millis();
        let tick = if self.has_color { "\x1b[32m✓\x1b[0m" } else { "✓" };
        self.print_line(&format!("  {tick} {step} ({ms} ms)"));
    }

    /// Reports a problem that does not prevent the start-up.
    pub fn warn(&self, problem: &str) {
        let mark = if self.has_color { "\x1b[33m!\x1b[0m" } else { "!" };
        self.print_line(&format!("  {mark} {problem}"));
    }

    fn print_line(&self, text: &str) {
        // Output is best effort.
        let _ = writeln!(io::stderr(), "{text}");
    }
}
