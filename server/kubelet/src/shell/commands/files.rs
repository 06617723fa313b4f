//! File commands.

use bytes::Bytes;

use super::super::{Shell, Stdio};
use super::{Code, print};
use crate::filesystem::{Entry, FsError, Node, base_name, resolve};

/// Splits arguments into option letters and operands.
fn split_options(args: &[String]) -> (String, Vec<&String>) {
    let (options, rest): (Vec<_>, Vec<_>) = args.iter().partition(|a| a.len() > 1 && a.starts_with('-'));
    (options.iter().flat_map(|o| o.chars().skip(1)).collect(), rest)
}

fn format_mode(entry: &Entry) -> String {
    let kind = match entry.node {
        Node::Directory => 'd',
        Node::Link(_) => 'l',
        Node::File(_) => '-',
    };
    let bits = (0..9).map(|bit| if entry.mode >> (8 - bit) & 1 == 1 { ['r', 'w', 'x'][bit % 3] } else { '-' });
    std::iter::once(kind).chain(bits).collect()
}

fn format_entry(name: &str, entry: &Entry, long: bool) -> String {
    if !long {
        return format!("{name}\n");
    }
    let size = if let Node::File(bytes) = &entry.node { bytes.len() } else { 4096 };
    let target = if let Node::Link(target) = &entry.node { format!(" -> {target}") } else { String::new() };
    let when = entry.modified.strftime("%b %e %H:%M");
    format!("{} 1 root root {size:>9} {when} {name}{target}\n", format_mode(entry))
}

pub async fn ls(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (options, mut paths) = split_options(args);
    let here = ".".to_owned();
    if paths.is_empty() {
        paths.push(&here);
    }
    let (long, all) = (options.contains('l'), options.contains(['a', 'A']));
    let (mut code, several) = (0, paths.len() > 1);
    let mut out = String::new();
    for path in paths {
        let full = resolve(&shell.cwd, path);
        let entry = match shell.fs.entry(&full, !long) {
            Ok(entry) => entry,
            Err(error) => {
                io.error(&format!("ls: {path}: {error}")).await;
                code = 1;
                continue;
            }
        };
        if entry.node != Node::Directory || options.contains('d') {
            out.push_str(&format_entry(path, &entry, long));
            continue;
        }
        if several {
            out.push_str(&format!("{path}:\n"));
        }
        for (name, entry) in shell.fs.list(&full).unwrap_or_default() {
            if all || !name.starts_with('.') {
                out.push_str(&format_entry(&name, &entry, long));
            }
        }
    }
    print(&io.stdout, out).await?;
    Ok(code)
}

pub async fn mkdir(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (options, paths) = split_options(args);
    let mut code = 0;
    for path in paths {
        if let Err(error) = shell.fs.make_dir(&resolve(&shell.cwd, path), options.contains('p'), shell.clock.now()) {
            io.error(&format!("mkdir: can't create directory '{path}': {error}")).await;
            code = 1;
        }
    }
    Ok(code)
}

pub async fn rm(shell: &Shell, name: &str, args: &[String], io: &Stdio) -> Code {
    let (options, paths) = split_options(args);
    let recursive = options.contains(['r', 'R']);
    let mut code = 0;
    for path in paths {
        let full = resolve(&shell.cwd, path);
        let removed = match name {
            "rmdir" => match shell.fs.list(&full) {
                Ok(inside) if !inside.is_empty() => Err(FsError::NotEmpty),
                Ok(_) => shell.fs.remove(&full, true),
                Err(error) => Err(error),
            },
            _ => shell.fs.remove(&full, recursive),
        };
        match removed {
            Ok(()) => {}
            Err(FsError::NotFound) if options.contains('f') => {}
            Err(error) => {
                io.error(&format!("{name}: can't remove '{path}': {error}")).await;
                code = 1;
            }
        }
    }
    Ok(code)
}

pub async fn copy(shell: &Shell, name: &str, args: &[String], io: &Stdio) -> Code {
    let (options, mut paths) = split_options(args);
    let (Some(target), false) = (paths.pop(), paths.is_empty()) else {
        io.error(&format!("{name}: missing file operand")).await;
        return Ok(1);
    };
    let target = resolve(&shell.cwd, target);
    let mut code = 0;
    for path in paths {
        let from = resolve(&shell.cwd, path);
        let to = if shell.fs.is_dir(&target) {
            format!("{}/{}", target.trim_end_matches('/'), base_name(&from))
        } else {
            target.clone()
        };
        let copied = copy_tree(shell, &from, &to, name == "mv" || options.contains(['r', 'R', 'a']));
        let done = copied.and_then(|()| if name == "mv" { shell.fs.remove(&from, true) } else { Ok(()) });
        if let Err(error) = done {
            io.error(&format!("{name}: can't {name} '{path}': {error}")).await;
            code = 1;
        }
    }
    Ok(code)
}

fn copy_tree(shell: &Shell, from: &str, to: &str, recursive: bool) -> Result<(), FsError> {
    let entries = shell.fs.walk(from)?;
    if !recursive && entries.first().is_some_and(|(_, e)| e.node == Node::Directory) {
        return Err(FsError::IsADirectory);
    }
    for (path, mut entry) in entries {
        entry.modified = shell.clock.now();
        shell.fs.put(&format!("{to}{}", &path[from.len()..]), entry)?;
    }
    Ok(())
}

pub async fn touch(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let mut code = 0;
    for path in split_options(args).1 {
        let full = resolve(&shell.cwd, path);
        let now = shell.clock.now();
        let touched = match shell.fs.entry(&full, true) {
            Ok(entry) => shell.fs.put(&full, Entry { modified: now, ..entry }),
            Err(FsError::NotFound) => shell.fs.write(&full, Bytes::new(), now),
            Err(error) => Err(error),
        };
        if let Err(error) = touched {
            io.error(&format!("touch: {path}: {error}")).await;
            code = 1;
        }
    }
    Ok(code)
}

pub async fn chmod(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let Some((mode, paths)) = args.split_first() else {
        io.error("chmod: missing operand").await;
        return Ok(1);
    };
    let mut code = 0;
    for path in paths {
        let full = resolve(&shell.cwd, path);
        let changed = shell.fs.entry(&full, true).and_then(|entry| {
            let mode = match (u32::from_str_radix(mode, 8), mode.contains('x')) {
                (Ok(bits), _) => bits & 0o7777,
                (Err(_), true) if mode.contains('-') => entry.mode & !0o111,
                (Err(_), true) => entry.mode | 0o111,
                (Err(_), false) => entry.mode,
            };
            shell.fs.put(&full, Entry { mode, ..entry })
        });
        if let Err(error) = changed {
            io.error(&format!("chmod: {path}: {error}")).await;
            code = 1;
        }
    }
    Ok(code)
}

/// `test` and `[`: files, strings, integers, `!`, `-a`, `-o`.
pub async fn test(shell: &Shell, name: &str, args: &[String], io: &Stdio) -> Code {
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    let closing = match name {
        "[" => Some("]"),
        "[[" => Some("]]"),
        _ => None,
    };
    if let Some(closing) = closing
        && args.pop() != Some(closing)
    {
        io.error(&format!("{name}: missing {closing}")).await;
        return Ok(2);
    }
    match evaluate(shell, &args) {
        Some(truth) => Ok(i32::from(!truth)),
        None => {
            io.error(&format!("{name}: {}: unexpected operator", args.join(" "))).await;
            Ok(2)
        }
    }
}

fn evaluate(shell: &Shell, args: &[&str]) -> Option<bool> {
    if args.len() > 3 {
        for (operator, or) in [("-o", true), ("-a", false)] {
            if let Some(at) = args.iter().position(|a| *a == operator) {
                let (left, right) = (evaluate(shell, &args[..at])?, evaluate(shell, &args[at + 1..])?);
                return Some(if or { left || right } else { left && right });
            }
        }
    }
    let entry = |path: &str, follow| shell.fs.entry(&resolve(&shell.cwd, path), follow).ok();
    match args {
        [] => Some(false),
        ["!", rest @ ..] => Some(!evaluate(shell, rest)?),
        [text] => Some(!text.is_empty()),
        ["-n", text] => Some(!text.is_empty()),
        ["-z", text] => Some(text.is_empty()),
        ["-t", _] => Some(shell.terminal.is_some()),
        ["-e" | "-r" | "-w", path] => Some(entry(path, true).is_some()),
        ["-d", path] => Some(entry(path, true).is_some_and(|e| e.node == Node::Directory)),
        ["-f", path] => Some(entry(path, true).is_some_and(|e| matches!(e.node, Node::File(_)))),
        ["-s", path] => {
            Some(entry(path, true).is_some_and(|e| matches!(e.node, Node::File(bytes) if !bytes.is_empty())))
        }
        ["-x", path] => Some(super::is_program(path) || entry(path, true).is_some_and(|e| e.mode & 0o111 != 0)),
        ["-L" | "-h", path] => Some(entry(path, false).is_some_and(|e| matches!(e.node, Node::Link(_)))),
        [left, "=" | "==", right] => Some(left == right),
        [left, "!=", right] => Some(left != right),
        [left, operator, right] => {
            let (left, right): (i64, i64) = (left.trim().parse().ok()?, right.trim().parse().ok()?);
            match *operator {
                "-eq" => Some(left == right),
                "-ne" => Some(left != right),
                "-lt" => Some(left < right),
                "-le" => Some(left <= right),
                "-gt" => Some(left > right),
                "-ge" => Some(left >= right),
                _ => None,
            }
        }
        _ => None,
    }
}
