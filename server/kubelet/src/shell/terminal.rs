//! Terminal emulation for interactive sessions: echo, line editing, `^C`, `^D`, history, and the prompt.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::{Flow, Shell, Stdio};
use crate::remotecommand::{Session, TerminalSize};
use crate::stream::{DiscardingSink, Input, Output, Sink};

/// Last reported size of the client's terminal.
#[derive(Debug, Default)]
pub struct SharedTerminalSize(Mutex<Option<TerminalSize>>);

impl SharedTerminalSize {
    pub fn get(&self) -> Option<TerminalSize> {
        *self.0.lock()
    }
}

/// Maximum number of typed lines waiting for the program.
const MAX_QUEUED_LINES: usize = 64;
/// Maximum line length of the editor, in bytes.
const MAX_LINE_BYTES: usize = 4096;

/// Exit code of a program whose terminal was disconnected (SIGHUP).
const SIGHUP_EXIT_CODE: i32 = 129;
/// Exit code of an interrupted program (SIGINT).
const SIGINT_EXIT_CODE: i32 = 130;

/// The input side of the terminal.
struct Keyboard {
    lines: mpsc::Sender<Bytes>,
    interrupt: Arc<Notify>,
    screen: Output,
}

/// Runs `arguments`, on a terminal if the session has one. Returns `None` if the program does not exist.
pub async fn run_interactive(mut shell: Shell, arguments: &[String], session: Session) -> Option<i32> {
    let Session { stdin, stdout, stderr, resize, tty } = session;
    let stdout = stdout.unwrap_or_else(|| Arc::new(DiscardingSink));
    if !tty {
        let stderr = stderr.unwrap_or_else(|| Arc::new(DiscardingSink));
        return match shell.start(arguments, Stdio::new(stdin, stdout, stderr)).await {
            super::StartOutcome::Code(code) => Some(code),
            super::StartOutcome::NotFound => None,
        };
    }
    let screen: Output = Arc::new(Screen(stdout.clone()));
    let (lines, queued_lines) = mpsc::channel(MAX_QUEUED_LINES);
    let interrupt = Arc::new(Notify::new());
    let size = Arc::new(SharedTerminalSize::default());
    shell.terminal = Some(size.clone());
    shell.env.entry("TERM".into()).or_insert_with(|| "xterm".into());
    let keyboard = Keyboard { lines, interrupt: interrupt.clone(), screen: stdout };
    let io = Stdio::new(Input::new(queued_lines), screen.clone(), screen);
    let program = async {
        if starts_prompt(arguments) {
            return Some(shell.prompt(&io, &interrupt).await);
        }
        tokio::select! {
            outcome = shell.start(arguments, io) => match outcome {
                super::StartOutcome::Code(code) => Some(code),
                super::StartOutcome::NotFound => None,
            },
            () = interrupt.notified() => Some(SIGINT_EXIT_CODE),
        }
    };
    let sizes = async {
        let Some(mut resize) = resize else { return std::future::pending().await };
        while let Some(new) = resize.recv().await {
            *size.0.lock() = Some(new);
        }
        std::future::pending::<()>().await
    };
    tokio::select! {
        code = program => code,
        () = keyboard.run(stdin) => Some(SIGHUP_EXIT_CODE),
        () = sizes => Some(SIGHUP_EXIT_CODE),
    }
}

/// Returns true if the command is a shell without a script, which shows a prompt.
fn starts_prompt(arguments: &[String]) -> bool {
    let Some((program, options)) = arguments.split_first() else { return false };
    matches!(program.rsplit('/').next(), Some("sh" | "bash" | "ash"))
        && options.iter().all(|o| matches!(o.as_str(), "-i" | "-l" | "-il" | "-"))
}

impl Shell {
    /// Reads and runs lines until `exit` or the end of the input.
    async fn prompt(&mut self, io: &Stdio, interrupt: &Notify) -> i32 {
        loop {
            let prompt = format!("{}:{} # ", self.identity.hostname, self.cwd);
            if io.stdout.send(Bytes::from(prompt)).await.is_err() {
                return SIGHUP_EXIT_CODE;
            }
            let mut stdin = io.stdin.lock().await;
            let line = tokio::select! {
                line = stdin.read_line() => line,
                () = interrupt.notified() => {
                    self.status = SIGINT_EXIT_CODE;
                    continue;
                }
            };
            drop(stdin);
            let Some(line) = line else { return self.status };
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.trim().is_empty() {
                continue;
            }
            let mut before = self.clone();
            tokio::select! {
                flow = self.try_run_script(&line, io) => match flow {
                    Err(Flow::Exit(code)) => return code,
                    Ok(code) => self.status = code,
                    Err(_) => {}
                },
                () = interrupt.notified() => {
                    before.status = SIGINT_EXIT_CODE;
                    *self = before;
                }
            }
        }
    }
}

impl Keyboard {
    /// Processes keys until the client closes its input.
    async fn run(self, mut keys: Input) {
        let mut line: Vec<u8> = Vec::new();
        let mut history: Vec<Vec<u8>> = Vec::new();
        let (mut history_index, mut escape) = (0, Vec::new());
        let mut lines = Some(self.lines);
        while let Some(chunk) = keys.read_chunk().await {
            let mut echo: Vec<u8> = Vec::new();
            for key in chunk {
                if !escape.is_empty() {
                    escape.push(key);
                    if !key.is_ascii_alphabetic() && key != b'~' {
                        continue;
                    }
                    let up = escape == b"\x1b[A" || escape == b"\x1bOA";
                    let down = escape == b"\x1b[B" || escape == b"\x1bOB";
                    escape.clear();
                    if up || down {
                        history_index = if up {
                            history_index.min(history.len()).saturating_sub(1)
                        } else {
                            (history_index + 1).min(history.len())
                        };
                        erase(&mut echo, line.len());
                        line = history.get(history_index).cloned().unwrap_or_default();
                        echo.extend_from_slice(&line);
                    }
                    continue;
                }
                match key {
                    0x1b => escape.push(key),
                    b'\r' | b'\n' => {
                        echo.extend_from_slice(b"\r\n");
                        if !line.is_empty() && history.last() != Some(&line) {
                            history.push(line.clone());
                        }
                        history_index = history.len();
                        line.push(b'\n');
                        let entered = Bytes::from(std::mem::take(&mut line));
                        // Echo the line before the program can write output.
                        if self.screen.send(Bytes::from(std::mem::take(&mut echo))).await.is_err() {
                            return;
                        }
                        if let Some(lines) = &lines
                            && lines.try_send(entered).is_err()
                        {
                            // Ring the bell when the line buffer is full.
                            echo.push(7);
                        }
                    }
                    0x03 => {
                        line.clear();
                        echo.extend_from_slice(b"^C\r\n");
                        if self.screen.send(Bytes::from(std::mem::take(&mut echo))).await.is_err() {
                            return;
                        }
                        self.interrupt.notify_waiters();
                    }
                    0x04 if line.is_empty() => lines = None,
                    0x08 | 0x7f if line.pop().is_some() => {
                        while line.last().is_some_and(|b| b & 0xc0 == 0x80) {
                            line.pop();
                        }
                        erase(&mut echo, 1);
                    }
                    0x15 => {
                        erase(&mut echo, line.len());
                        line.clear();
                    }
                    0x17 => {
                        let kept_bytes = line.iter().rposition(|b| !b.is_ascii_whitespace()).map_or(0, |end| {
                            line[..end].iter().rposition(u8::is_ascii_whitespace).map_or(0, |at| at + 1)
                        });
                        erase(&mut echo, line.len() - kept_bytes);
                        line.truncate(kept_bytes);
                    }
                    key if line.len() < MAX_LINE_BYTES && (key >= 0x20 || key == b'\t') => {
                        line.push(key);
                        echo.push(key);
                    }
                    _ => {}
                }
            }
            if !echo.is_empty() && self.screen.send(Bytes::from(echo)).await.is_err() {
                return;
            }
        }
        // The input has ended, but the program may still write output.
        drop(lines);
        std::future::pending().await
    }
}

/// Appends the control characters that erase the last columns.
fn erase(echo: &mut Vec<u8>, columns: usize) {
    for _ in 0..columns {
        echo.extend_from_slice(b"\x08 \x08");
    }
}

/// The output side of the terminal: translates newline to carriage return and newline.
struct Screen(Output);

#[async_trait]
impl Sink for Screen {
    async fn send(&self, data: Bytes) -> io::Result<()> {
        let mut translated = Vec::with_capacity(data.len() + 16);
        for byte in data {
            if byte == b'\n' {
                translated.push(b'\r');
            }
            translated.push(byte);
        }
        self.0.send(Bytes::from(translated)).await
    }
}
