//! Verbs of the command line that are clients of a control plane or its members, and their common parts: connections,
//! object arguments, output formats. Data goes to standard output, everything else to standard error. Exit codes are
//! kubectl's (0 success, 1 error, the command's own code for `exec`, 1 for `diff` with differences), plus 3 for
//! `--fail-on-empty`, 4 for `--fail-on-change` and 5 for partial results.
//!
//! A verb is a file or folder in `verbs/` and an entry in `verbs.rs`. This crate depends on no server crate.

use std::io::Write;
use std::process::ExitCode;

use output::terminal;
pub use verbs::Verb;

/// The text below the help of a command: examples, one line each, and after a semicolon a text that follows them.
#[macro_export]
macro_rules! examples {
    ($($example:literal),+ $(,)? $(; $note:literal)?) => {
        concat!("Examples:", $("\n  ", $example),+ $(, "\n\n", $note)?)
    };
}

mod amounts;
pub mod clients;
pub mod columns;
pub mod connection;
pub mod data_dir;
pub mod duration;
pub mod event_stream;
pub mod object;
pub mod output;
pub mod pager;
mod partial;
pub mod permissions;
pub mod process;
mod reviews;
pub mod sources;
pub mod spinner;
#[cfg(test)]
mod testing;
pub mod verbs;
pub mod workload;

/// Prints an error with its causes as one line to standard error and returns exit code 1.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    // If standard error is closed, the exit code still reports the error.
    let _ = writeln!(terminal::stderr(), "error: {}", error_chain(error));
    ExitCode::FAILURE
}

/// Logs an error with its causes and returns exit code 1, for servers whose users read the log only.
pub fn fail_logged(error: &anyhow::Error) -> ExitCode {
    tracing::error!(error = error_chain(error), "crowsnest exited with an error");
    ExitCode::FAILURE
}

/// Joins the causes of an error, outermost first. The chain ends at the first failed request, which is printed with its
/// next step.
fn error_chain(error: &anyhow::Error) -> String {
    let mut causes = Vec::new();
    for cause in error.chain() {
        if let Some(error) = clients::find_request_error(cause) {
            causes.push(clients::explain_failure(None, error));
            break;
        }
        causes.push(cause.to_string());
    }
    causes.join(": ")
}
