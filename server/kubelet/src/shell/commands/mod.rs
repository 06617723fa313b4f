//! Programs of simulated images and built-in shell commands.

mod files;
mod system;
mod text;
mod values;

use std::io;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::{Flow, MAX_DEPTH, SIGPIPE_EXIT_CODE, Shell, Stdio, archive};
use crate::filesystem::resolve;
use crate::stream::Output;

/// Built-in shell commands.
const SHELL_COMMANDS: &[&str] = &[
    ":", "break", "cd", "continue", "exit", "export", "read", "set", "shift", "unset", "exec", "eval", "type",
    "command", "trap", "wait", ".",
];
/// Programs in `/bin`.
const PROGRAMS: &[&str] = &[
    "[", "[[", "agnhost", "ash", "base64", "basename", "bash", "cat", "chmod", "cp", "cut", "date", "dirname", "echo",
    "env", "expr", "false", "grep", "head", "hostname", "id", "kill", "ls", "mkdir", "mv", "printenv", "printf", "ps",
    "pwd", "rm", "rmdir", "seq", "sh", "sleep", "sort", "stty", "tail", "tar", "tee", "test", "touch", "tr", "true",
    "tty", "uname", "uniq", "uptime", "wc", "which", "whoami",
];
/// Directories in which the programs are found.
const PROGRAM_DIRECTORIES: &[&str] = &["/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin"];

/// Returns true if the simulated images contain a program of this name or path.
pub fn is_program(program: &str) -> bool {
    match program.rsplit_once('/') {
        None => PROGRAMS.contains(&program),
        Some((directory, name)) => PROGRAM_DIRECTORIES.contains(&directory) && PROGRAMS.contains(&name),
    }
}

/// Exit code of a command. An I/O error means that its output was closed.
type Code = io::Result<i32>;

async fn print(output: &Output, text: impl Into<Bytes> + Send) -> io::Result<()> {
    output.send(text.into()).await
}

impl Shell {
    /// Runs one command with expanded arguments.
    pub(super) fn run_program<'a>(
        &'a mut self,
        arguments: &'a [String],
        io: &'a Stdio,
    ) -> BoxFuture<'a, Result<i32, Flow>> {
        Box::pin(async move {
            let Some((name, rest)) = arguments.split_first() else { return Ok(0) };
            if SHELL_COMMANDS.contains(&name.as_str()) {
                return self.run_shell_command(name, rest, io).await;
            }
            if !is_program(name) {
                self.record_unknown_command();
                let is_path = name.contains('/');
                io.error(&format!("{}: {name}: not found", self.name)).await;
                let exists = is_path && self.fs.entry(&resolve(&self.cwd, name), true).is_ok();
                return Ok(if exists { 126 } else { 127 });
            }
            let name = name.rsplit('/').next().unwrap_or(name);
            if matches!(name, "sh" | "bash" | "ash") {
                return Ok(self.run_shell(name, rest, io).await);
            }
            match self.run_named_program(name, rest, io).await {
                Ok(code) => Ok(code),
                // SIGPIPE ends the whole process, including loops.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Flow::Exit(SIGPIPE_EXIT_CODE)),
                Err(error) => {
                    io.error(&format!("{name}: write error: {error}")).await;
                    Ok(1)
                }
            }
        })
    }

    /// Runs a program of the image other than a shell.
    async fn run_named_program(&mut self, name: &str, args: &[String], io: &Stdio) -> Code {
        match name {
            "true" => Ok(0),
            "false" => Ok(1),
            "echo" => text::echo(args, io).await,
            "printf" => text::printf(args, io).await,
            "cat" => text::cat(self, args, io).await,
            "head" => text::head(self, args, io).await,
            "tail" => text::tail(self, args, io).await,
            "wc" => text::wc(self, args, io).await,
            "grep" => text::grep(self, args, io).await,
            "tee" => text::tee(self, args, io).await,
            "seq" => values::seq(args, io).await,
            "sort" | "uniq" => text::sort(self, name, args, io).await,
            "tr" => text::tr(args, io).await,
            "cut" => text::cut(self, args, io).await,
            "expr" => values::expr(self, args, io).await,
            "base64" => text::base64(self, args, io).await,
            "basename" | "dirname" => values::path_part(name, args, io).await,
            "ls" => files::ls(self, args, io).await,
            "pwd" => {
                print(&io.stdout, format!("{}\n", self.cwd)).await?;
                Ok(0)
            }
            "mkdir" => files::mkdir(self, args, io).await,
            "rm" | "rmdir" => files::rm(self, name, args, io).await,
            "cp" | "mv" => files::copy(self, name, args, io).await,
            "touch" => files::touch(self, args, io).await,
            "chmod" => files::chmod(self, args, io).await,
            "test" | "[" | "[[" => files::test(self, name, args, io).await,
            "tar" => archive::tar(self, args, io).await,
            "env" | "printenv" => system::env(self, name, args, io).await,
            "date" => system::date(self, args, io).await,
            "agnhost" => system::agnhost(self, args, io).await,
            "sleep" => system::sleep(self, args, io).await,
            "ps" => system::ps(self, io).await,
            "which" => system::which(args, io).await,
            "kill" => system::kill(args, io).await,
            "stty" | "tty" => system::terminal(self, name, args, io).await,
            _ => system::identity(self, name, args, io).await,
        }
    }

    /// `sh` as a program: `-c script`, a script file, or a script on stdin.
    async fn run_shell(&mut self, name: &str, args: &[String], io: &Stdio) -> i32 {
        let mut shell = self.clone();
        shell.depth += 4;
        if shell.depth > MAX_DEPTH * 4 {
            io.error(&format!("{name}: too many nested shells")).await;
            return 2;
        }
        shell.name = name.to_owned();
        let mut rest = args;
        let mut has_script = false;
        while let Some((option, more)) = rest.split_first().filter(|(o, _)| o.len() > 1 && o.starts_with('-')) {
            has_script |= option.contains('c');
            shell.errexit |= option.contains('e');
            rest = more;
        }
        if has_script {
            let Some((script, parameters)) = rest.split_first() else {
                io.error(&format!("{name}: -c requires an argument")).await;
                return 2;
            };
            if let Some((zero, parameters)) = parameters.split_first() {
                (shell.name, shell.parameters) = (zero.clone(), parameters.to_vec());
            }
            return shell.run_script(script, io).await;
        }
        if let Some((file, parameters)) = rest.split_first() {
            let Ok(script) = shell.fs.read(&resolve(&shell.cwd, file)) else {
                io.error(&format!("{name}: can't open '{file}': No such file or directory")).await;
                return 2;
            };
            (shell.name, shell.parameters) = (file.clone(), parameters.to_vec());
            return shell.run_script(&String::from_utf8_lossy(&script), io).await;
        }
        shell.run_stdin(io).await
    }

    /// Runs a script from stdin line by line. Compound commands may span several lines.
    async fn run_stdin(&mut self, io: &Stdio) -> i32 {
        let mut script = String::new();
        loop {
            let line = io.stdin.lock().await.read_line().await;
            let is_end = line.is_none();
            script.push_str(&String::from_utf8_lossy(&line.unwrap_or_default()));
            let is_incomplete = matches!(
                super::parse::parse(&script),
                Err(super::parse::SyntaxError::EndOfFile | super::parse::SyntaxError::Unterminated)
            );
            if is_incomplete && !is_end && !script.trim().is_empty() {
                continue;
            }
            if !script.trim().is_empty()
                && let Err(Flow::Exit(code)) = self.try_run_script(&std::mem::take(&mut script), io).await
            {
                return code;
            }
            script.clear();
            if is_end {
                return self.status;
            }
        }
    }

    /// Runs a built-in shell command.
    async fn run_shell_command(&mut self, name: &str, args: &[String], io: &Stdio) -> Result<i32, Flow> {
        let first = args.first().map(String::as_str);
        match name {
            "exit" => {
                Err(Flow::Exit(first.map_or(Some(self.status), |code| code.parse().ok()).map_or(2, |c| c & 0xff)))
            }
            "break" => Err(Flow::Break),
            "continue" => Err(Flow::Continue),
            "cd" => {
                let home = self.env.get("HOME").cloned().unwrap_or_else(|| "/".into());
                let target = match first {
                    Some("-") => self.env.get("OLDPWD").cloned().unwrap_or(home),
                    Some(path) => path.to_owned(),
                    None => home,
                };
                let path = resolve(&self.cwd, &target);
                if !self.fs.is_dir(&path) {
                    io.error(&format!("{}: cd: can't cd to {target}: No such file or directory", self.name)).await;
                    return Ok(2);
                }
                self.env.insert("OLDPWD".into(), std::mem::replace(&mut self.cwd, path));
                Ok(0)
            }
            "export" => {
                for assignment in args {
                    if let Some((name, value)) = assignment.split_once('=') {
                        self.env.insert(name.to_owned(), value.to_owned());
                    }
                }
                Ok(0)
            }
            "unset" => {
                for name in args {
                    self.env.remove(name);
                }
                Ok(0)
            }
            "set" => {
                for option in args {
                    match option.as_str() {
                        "-e" | "-ex" | "-eu" | "-eux" | "-euo" => self.errexit = true,
                        "+e" => self.errexit = false,
                        _ => {}
                    }
                }
                Ok(0)
            }
            "shift" => {
                let by = first.and_then(|n| n.parse().ok()).unwrap_or(1).min(self.parameters.len());
                self.parameters.drain(..by);
                Ok(0)
            }
            "read" => {
                let line = io.stdin.lock().await.read_line().await;
                let Some(line) = line else { return Ok(1) };
                let line = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                let names: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
                let mut rest = line.trim();
                for (index, name) in names.iter().enumerate() {
                    let (word, more) = match rest.split_once(char::is_whitespace) {
                        Some((word, more)) if index + 1 < names.len() => (word, more.trim_start()),
                        _ => (rest, ""),
                    };
                    self.env.insert((*name).clone(), word.to_owned());
                    rest = more;
                }
                Ok(0)
            }
            "eval" => self.try_run_script(&args.join(" "), io).await,
            "exec" if !args.is_empty() => Err(Flow::Exit(self.run_program(args, io).await?)),
            "command" if first != Some("-v") => self.run_program(args, io).await,
            "type" | "command" => {
                let name = args.last().cloned().unwrap_or_default();
                let known = SHELL_COMMANDS.contains(&name.as_str()) || is_program(&name);
                if !known {
                    return Ok(127);
                }
                let path = if SHELL_COMMANDS.contains(&name.as_str()) { name } else { format!("/bin/{name}") };
                Ok(i32::from(print(&io.stdout, format!("{path}\n")).await.is_err()))
            }
            "." => {
                let script = first.and_then(|file| self.fs.read(&resolve(&self.cwd, file)).ok());
                match script {
                    Some(script) => self.try_run_script(&String::from_utf8_lossy(&script), io).await,
                    None => {
                        io.error(&format!("{}: .: can't open '{}'", self.name, first.unwrap_or_default())).await;
                        Err(Flow::Exit(2))
                    }
                }
            }
            // `:`, and `trap` and `wait`: signals and jobs are not simulated.
            _ => Ok(0),
        }
    }
}
