//! Pages output in a terminal through `$CROWSNEST_PAGER`, `$PAGER` or `less`. Verbs that print long output call
//! [`begin`]; `main` calls [`end`] before the process exits.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::{Child, Command, Stdio};

use parking_lot::Mutex;
use rustix::termios::tcgetwinsize;
use tokio::signal::unix::{SignalKind, signal};

/// The running pager, if any.
static PAGER: Mutex<Option<Child>> = Mutex::new(None);

/// Environment variables that name the pager, in order of precedence. An empty value or `cat` disables paging.
const PAGER_VARIABLES: [&str; 2] = ["CROWSNEST_PAGER", "PAGER"];
const DEFAULT_PAGER: &str = "less";
/// Default options of `less`: quit if the output fits one screen, pass colours through, keep the screen.
const LESS_OPTIONS: (&str, &str) = ("LESS", "FRX");

/// Redirects standard output into a pager from here on. Does nothing without a terminal or if the pager cannot be
/// started.
pub fn begin() {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if is_dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return;
    }
    let Some(command) = pager_command(|name| std::env::var_os(name)).filter(|command| is_in_path(command)) else {
        return;
    };
    let mut running = PAGER.lock();
    // Ctrl-C is for the pager. Without this handler it would end this process as well, and the pager would keep the
    // terminal with a closed pipe.
    if running.is_some() || signal(SignalKind::interrupt()).is_err() {
        return;
    }
    match spawn_pager(&command) {
        Ok(child) => *running = Some(child),
        Err(error) => tracing::debug!(%error, %command, "cannot start the pager"),
    }
}

/// True if standard output is a terminal, directly or through the pager.
pub(crate) fn is_terminal_output() -> bool {
    PAGER.lock().is_some() || io::stdout().is_terminal()
}

/// Width in columns of the terminal that shows the output.
pub(crate) fn width() -> Option<usize> {
    let size = if is_terminal_output() {
        tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout())).ok()
    } else {
        None
    };
    size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Closes the pipe and waits until the pager exits.
pub fn end() {
    let Some(mut child) = PAGER.lock().take() else { return };
    // The pager reads until all copies of the pipe's write end are closed. A broken pipe is not an error.
    let _ = io::stdout().flush();
    let result = std::fs::OpenOptions::new().write(true).open("/dev/null").and_then(|dev_null| {
        rustix::stdio::dup2_stdout(&dev_null)?;
        rustix::stdio::dup2_stderr(&dev_null)?;
        child.wait()
    });
    if let Err(error) = result {
        tracing::debug!(%error, "cannot wait for the pager");
    }
}

/// True if `$PATH` has the command.
fn is_in_path(command: &str) -> bool {
    let program = command.split_whitespace().next().unwrap_or_default();
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

fn spawn_pager(command: &str) -> io::Result<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).stdin(Stdio::piped());
    if std::env::var_os(LESS_OPTIONS.0).is_none() {
        shell.env(LESS_OPTIONS.0, LESS_OPTIONS.1);
    }
    let mut child = shell.spawn()?;
    let Some(input) = child.stdin.take() else { return Err(io::Error::other("the pager has no standard input")) };
    io::stdout().flush()?;
    rustix::stdio::dup2_stdout(&input)?;
    // Errors and notes appear in the pager too, unless standard error is redirected.
    if io::stderr().is_terminal() {
        rustix::stdio::dup2_stderr(&input)?;
    }
    Ok(child)
}

/// The pager command that the environment selects.
fn pager_command(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let configured = PAGER_VARIABLES.iter().find_map(|name| variable(name));
    let command =
        configured.map_or_else(|| DEFAULT_PAGER.to_owned(), |command| command.to_string_lossy().trim().to_owned());
    Some(command).filter(|command| !command.is_empty() && command != "cat")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(&[], Some("less"))]
    #[case(&[("PAGER", "more")], Some("more"))]
    #[case(&[("PAGER", "more"), ("CROWSNEST_PAGER", "less -S")], Some("less -S"))]
    #[case(&[("PAGER", "more"), ("CROWSNEST_PAGER", "")], None)]
    #[case(&[("PAGER", "cat")], None)]
    fn pager_is_chosen_by_the_environment(#[case] variables: &[(&str, &str)], #[case] expected: Option<&str>) {
        let command = pager_command(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        });
        assert_eq!(command.as_deref(), expected);
    }
}
