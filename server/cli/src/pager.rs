//! In a terminal, what is longer than it is read page by page: by `$CROWSNEST_PAGER`, `$PAGER`, or `less`, which leaves what fits as it
//! is. Commands begin it when they print; the process ends it.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::{Child, Command, Stdio};

use parking_lot::Mutex;
use rustix::termios::tcgetwinsize;
use tokio::signal::unix::{SignalKind, signal};

/// The pager that reads our output, and whether that is for a terminal though it goes into a pipe.
static PAGER: Mutex<Option<Child>> = Mutex::new(None);

/// What names it, the more particular one first. One that is empty, or `cat`, is none.
const NAMED_BY: [&str; 2] = ["CROWSNEST_PAGER", "PAGER"];
const DEFAULT: &str = "less";
/// What fits a screen is left there, colours are colours, and the screen stays as it is; for those that read it.
const LESS: (&str, &str) = ("LESS", "FRX");

/// From here on what is printed goes through a pager. Where there is no terminal, or none can be started, all stays as it is.
pub fn begin() {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return;
    }
    let Some(command) = chosen(|name| std::env::var_os(name)).filter(|command| is_there(command)) else { return };
    let mut running = PAGER.lock();
    // An interrupt is the pager's: who reads has not seen enough, and the terminal stays with it.
    if running.is_some() || signal(SignalKind::interrupt()).is_err() {
        return;
    }
    match start(&command) {
        Ok(child) => *running = Some(child),
        Err(error) => tracing::debug!(%error, %command, "no pager"),
    }
}

/// Whether our output is for a terminal, through a pager or at once.
pub(crate) fn for_people() -> bool {
    PAGER.lock().is_some() || io::stdout().is_terminal()
}

/// How wide the terminal is that our output is for.
pub(crate) fn width() -> Option<usize> {
    let size = if for_people() { tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout())).ok() } else { None };
    size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Waits until everything was read.
pub fn end() {
    let Some(mut child) = PAGER.lock().take() else { return };
    // The pager reads until nobody holds the pipe any more. A closed one changes nothing.
    let _ = io::stdout().flush();
    let ended = std::fs::OpenOptions::new().write(true).open("/dev/null").and_then(|nowhere| {
        rustix::stdio::dup2_stdout(&nowhere)?;
        rustix::stdio::dup2_stderr(&nowhere)?;
        child.wait()
    });
    if let Err(error) = ended {
        tracing::debug!(%error, "waiting for the pager");
    }
}

/// Whether the shell would find it.
fn is_there(command: &str) -> bool {
    let program = command.split_whitespace().next().unwrap_or_default();
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

fn start(command: &str) -> io::Result<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).stdin(Stdio::piped());
    if std::env::var_os(LESS.0).is_none() {
        shell.env(LESS.0, LESS.1);
    }
    let mut child = shell.spawn()?;
    let Some(input) = child.stdin.take() else { return Err(io::Error::other("it reads nothing")) };
    io::stdout().flush()?;
    rustix::stdio::dup2_stdout(&input)?;
    // What is missing is told where the rest is; redirected, it goes where it was sent.
    if io::stderr().is_terminal() {
        rustix::stdio::dup2_stderr(&input)?;
    }
    Ok(child)
}

/// Which pager is meant.
fn chosen(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let named = NAMED_BY.iter().find_map(|name| variable(name));
    let command = named.map_or_else(|| DEFAULT.to_owned(), |named| named.to_string_lossy().trim().to_owned());
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
    fn pagers_are_chosen(#[case] variables: &[(&str, &str)], #[case] expected: Option<&str>) {
        let told =
            chosen(|name| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value)));
        assert_eq!(told.as_deref(), expected);
    }
}
