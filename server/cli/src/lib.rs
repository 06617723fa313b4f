//! Verbs of the command line that are clients of a control plane or of its members, and what these verbs share: how a control plane
//! is reached, how objects are named, how results are written. Data goes to standard output, everything else to standard error; exit
//! codes are kubectl's (0 ok, 1 error, of `exec` the command's own, of `diff` 1 where something differs) plus 3 for
//! `--fail-on-empty`, 4 for `--fail-on-change` and 5 for a partial answer.
//!
//! A verb is a folder or file of `verbs/` and an entry of `verbs.rs`. Nothing here knows a server.

use std::io::Write;
use std::process::ExitCode;

use output::terminal;
pub use verbs::Verb;

pub mod columns;
pub mod connection;
pub mod data_dir;
pub mod duration;
pub mod event_stream;
pub mod object;
pub mod output;
pub mod pager;
pub mod process;
pub mod reach;
pub mod rights;
pub mod sources;
pub mod verbs;
pub mod waiting;
pub mod workload;

/// Prints an error as one line, its causes included, and gives exit code 1.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    // A closed standard error changes nothing.
    let _ = writeln!(terminal::stderr(), "error: {}", told(error));
    ExitCode::FAILURE
}

/// The same as a line of the log, for whoever reads that alone.
pub fn fail_logged(error: &anyhow::Error) -> ExitCode {
    tracing::error!(error = told(error), "it ends");
    ExitCode::FAILURE
}

/// An error's causes from the outermost on; the last is what a server said, or that none did.
fn told(error: &anyhow::Error) -> String {
    let mut causes = Vec::new();
    for cause in error.chain() {
        if let Some(request) = reach::of_a_request(cause) {
            causes.push(reach::failure(None, request));
            break;
        }
        causes.push(cause.to_string());
    }
    causes.join(": ")
}
