//! Text commands.

use std::sync::Arc;

use ::base64::Engine;
use ::base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use tokio::sync::Mutex;

use super::super::expand::matches;
use super::super::{Shell, Stdio};
use super::{Code, print};
use crate::stream::Input;

/// Name and reader of an opened file or stdin.
type NamedInput = (String, Arc<Mutex<Input>>);

/// Opens all file arguments, or stdin for none or `-`. The exit code is 1 if a file cannot be read.
async fn open_inputs(shell: &Shell, name: &str, files: &[String], io: &Stdio) -> (Vec<NamedInput>, i32) {
    let stdin = ["-".to_owned()];
    let files = if files.is_empty() { &stdin } else { files };
    let (mut opened, mut code) = (Vec::new(), 0);
    for file in files {
        if file == "-" {
            opened.push((file.clone(), io.stdin.clone()));
            continue;
        }
        match shell.open(file) {
            Ok(input) => opened.push((file.clone(), Arc::new(Mutex::new(input)))),
            Err(error) => {
                io.error(&format!("{name}: {file}: {error}")).await;
                code = 1;
            }
        }
    }
    (opened, code)
}

/// Splits arguments into option letters and operands. The letters in `with_value` take a value, attached or as next
/// argument.
fn parse_options(args: &[String], with_value: &str) -> (Vec<(char, String)>, Vec<String>) {
    let (mut found, mut rest) = (Vec::new(), Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            rest.extend(args.cloned());
            break;
        }
        let Some(letters) = arg.strip_prefix('-').filter(|l| !l.is_empty()) else {
            rest.push(arg.clone());
            continue;
        };
        let letters = letters.char_indices();
        for (at, letter) in letters {
            if with_value.contains(letter) {
                let attached = arg[1 + at + letter.len_utf8()..].to_owned();
                found.push((
                    letter,
                    if attached.is_empty() { args.next().cloned().unwrap_or_default() } else { attached },
                ));
                break;
            }
            found.push((letter, String::new()));
        }
    }
    (found, rest)
}

fn option_value(options: &[(char, String)], letter: char) -> Option<&str> {
    options.iter().rev().find(|(l, _)| *l == letter).map(|(_, value)| value.as_str())
}

pub async fn echo(args: &[String], io: &Stdio) -> Code {
    let (mut newline, mut escapes, mut rest) = (true, false, args);
    while let Some((option, more)) = rest.split_first() {
        match option.as_str() {
            "-n" => newline = false,
            "-e" => escapes = true,
            "-ne" | "-en" => (newline, escapes) = (false, true),
            _ => break,
        }
        rest = more;
    }
    let mut text = rest.join(" ");
    if escapes {
        text = unescape(&text);
    }
    if newline {
        text.push('\n');
    }
    print(&io.stdout, text).await?;
    Ok(0)
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('0') => out.push('\0'),
            Some('\\') | None => out.push('\\'),
            Some(other) => out.extend(['\\', other]),
        }
    }
    out
}

pub async fn printf(args: &[String], io: &Stdio) -> Code {
    let Some((format, mut values)) = args.split_first() else {
        io.error("printf: usage: printf format [arguments]").await;
        return Ok(2);
    };
    let format = unescape(format);
    let mut out = String::new();
    loop {
        let mut used = false;
        let mut chars = format.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut width = String::new();
            while let Some(digit) = chars.next_if(|c| c.is_ascii_digit() || *c == '-') {
                width.push(digit);
            }
            let kind = chars.next().unwrap_or('%');
            if kind == '%' {
                out.push('%');
                continue;
            }
            let value = values.first().cloned().unwrap_or_default();
            values = values.get(1..).unwrap_or_default();
            used = true;
            let text = match kind {
                'd' | 'i' => value.trim().parse::<i64>().unwrap_or_default().to_string(),
                'b' => unescape(&value),
                _ => value,
            };
            // Limits the width of a field.
            let columns =
                width.trim_start_matches('-').trim_start_matches('0').parse::<usize>().unwrap_or_default().min(512);
            match (width.starts_with('-'), width.starts_with('0')) {
                (true, _) => out.push_str(&format!("{text:<columns$}")),
                (_, true) => out.push_str(&format!("{text:0>columns$}")),
                _ => out.push_str(&format!("{text:>columns$}")),
            }
        }
        if values.is_empty() || !used {
            break;
        }
    }
    print(&io.stdout, out).await?;
    Ok(0)
}

pub async fn cat(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (_, files) = parse_options(args, "");
    let (inputs, code) = open_inputs(shell, "cat", &files, io).await;
    for (_, input) in inputs {
        let mut input = input.lock().await;
        while let Some(chunk) = input.read_chunk().await {
            io.stdout.send(chunk).await?;
        }
    }
    Ok(code)
}

/// Parses the options of `head` and `tail`: count, whether it counts from the start (`+N`), whether it counts bytes,
/// and the files.
fn parse_count(args: &[String]) -> (usize, bool, bool, Vec<String>) {
    let is_count =
        |a: &String| a.strip_prefix('-').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let args: Vec<String> = args
        .iter()
        .flat_map(|a| if is_count(a) { vec!["-n".into(), a[1..].into()] } else { vec![a.clone()] })
        .collect();
    let (options, files) = parse_options(&args, "nc");
    let bytes = option_value(&options, 'c');
    let text = bytes.or(option_value(&options, 'n')).unwrap_or("10");
    let count = text.trim_start_matches(['+', '-']).parse().unwrap_or(10);
    (count, text.starts_with('+'), bytes.is_some(), files)
}

pub async fn head(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (count, _, counts_bytes, files) = parse_count(args);
    let (inputs, code) = open_inputs(shell, "head", &files, io).await;
    for (_, input) in inputs {
        let mut input = input.lock().await;
        let mut left = count;
        while left > 0 {
            let Some(piece) = (if counts_bytes { input.read_chunk().await } else { input.read_line().await }) else {
                break;
            };
            let taken = if counts_bytes { piece.len().min(left) } else { 1 };
            io.stdout.send(if counts_bytes { piece.slice(..taken) } else { piece }).await?;
            left -= taken;
        }
    }
    Ok(code)
}

pub async fn tail(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (count, from_start, counts_bytes, files) = parse_count(args);
    let follows = args.iter().any(|a| matches!(a.as_str(), "-f" | "-F"));
    let (inputs, code) = open_inputs(shell, "tail", &files, io).await;
    for (_, input) in inputs {
        let mut input = input.lock().await;
        if from_start {
            let skip = count.saturating_sub(1);
            if counts_bytes {
                input.skip(skip as u64).await;
            } else {
                for _ in 0..skip {
                    input.read_line().await;
                }
            }
            while let Some(chunk) = input.read_chunk().await {
                io.stdout.send(chunk).await?;
            }
            continue;
        }
        let mut kept = std::collections::VecDeque::new();
        while let Some(line) = input.read_line().await {
            if counts_bytes {
                kept.extend(line.iter().map(|b| Bytes::copy_from_slice(&[*b])));
            } else {
                kept.push_back(line);
            }
            while kept.len() > count {
                kept.pop_front();
            }
        }
        let all: Vec<u8> = kept.iter().flatten().copied().collect();
        io.stdout.send(Bytes::from(all)).await?;
    }
    if follows {
        // No other process appends to files, so `-f` waits until it is interrupted.
        std::future::pending::<()>().await;
    }
    Ok(code)
}

pub async fn wc(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (options, files) = parse_options(args, "");
    let is_selected = |letter| options.is_empty() || options.iter().any(|(l, _)| *l == letter);
    let has_names = !files.is_empty();
    let (inputs, code) = open_inputs(shell, "wc", &files, io).await;
    for (file, input) in inputs {
        let mut input = input.lock().await;
        let (mut lines, mut words, mut bytes) = (0usize, 0usize, 0usize);
        while let Some(line) = input.read_line().await {
            lines += usize::from(line.ends_with(b"\n"));
            words += String::from_utf8_lossy(&line).split_whitespace().count();
            bytes += line.len();
        }
        let counts = [('l', lines), ('w', words), ('c', bytes)];
        let mut fields: Vec<String> =
            counts.iter().filter(|(l, _)| is_selected(*l)).map(|(_, n)| n.to_string()).collect();
        if has_names {
            fields.push(file.to_owned());
        }
        print(&io.stdout, format!("{}\n", fields.join(" "))).await?;
    }
    Ok(code)
}

/// `grep` for literal text with `^`, `$`, `.*` and bracket expressions, and the options `-i -v -c -q -n`.
pub async fn grep(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (options, mut files) = parse_options(args, "e");
    let has = |letter| options.iter().any(|(l, _)| *l == letter);
    let pattern = match option_value(&options, 'e') {
        Some(pattern) => pattern.to_owned(),
        None if files.is_empty() => {
            io.error("grep: missing pattern").await;
            return Ok(2);
        }
        None => files.remove(0),
    };
    let alternatives: Vec<String> =
        if has('E') { pattern.split('|').map(as_glob).collect() } else { vec![as_glob(&pattern)] };
    let fold = |text: &str| if has('i') { text.to_lowercase() } else { text.to_owned() };
    let alternatives: Vec<String> = alternatives.iter().map(|a| fold(a)).collect();
    let mut total = 0usize;
    let (inputs, code) = open_inputs(shell, "grep", &files, io).await;
    for (_, input) in inputs {
        let mut input = input.lock().await;
        let mut number = 0usize;
        while let Some(line) = input.read_line().await {
            number += 1;
            let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            if alternatives.iter().any(|a| matches(a, &fold(&text))) == has('v') {
                continue;
            }
            total += 1;
            if !has('q') && !has('c') {
                let prefix = if has('n') { format!("{number}:") } else { String::new() };
                print(&io.stdout, format!("{prefix}{text}\n")).await?;
            }
        }
    }
    if has('c') {
        print(&io.stdout, format!("{total}\n")).await?;
    }
    Ok(if code != 0 { 2 } else { i32::from(total == 0) })
}

/// Translates a simple regular expression to a shell pattern for whole lines.
fn as_glob(pattern: &str) -> String {
    let (start, pattern) = pattern.strip_prefix('^').map_or(("*", pattern), |p| ("", p));
    let (pattern, end) = pattern.strip_suffix('$').map_or((pattern, "*"), |p| (p, ""));
    let escaped =
        pattern.replace('?', "\\?").replace(".*", "\0").replace('*', "\\*").replace('\0', "*").replace('.', "?");
    format!("{start}{}{end}", escaped.replace("\\?", "\\.").replace("\\.", "."))
}

pub async fn tee(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (options, files) = parse_options(args, "");
    let append = options.iter().any(|(l, _)| *l == 'a');
    let mut outputs = vec![io.stdout.clone()];
    for file in &files {
        match shell.create(file, append, io) {
            Ok(output) => outputs.push(output),
            Err(error) => io.error(&format!("tee: {file}: {error}")).await,
        }
    }
    let failed = outputs.len() <= files.len();
    while let Some(chunk) = io.stdin.lock().await.read_chunk().await {
        for output in &outputs {
            output.send(chunk.clone()).await?;
        }
    }
    for file in &outputs[1..] {
        file.finish().await?;
    }
    Ok(i32::from(failed))
}

/// `sort` and `uniq`, which `name` selects. Only `sort` orders the lines; `uniq` and `sort -u` combine equal adjacent lines.
pub async fn sort(shell: &Shell, name: &str, args: &[String], io: &Stdio) -> Code {
    let (options, files) = parse_options(args, "k");
    let has = |letter| options.iter().any(|(l, _)| *l == letter);
    let mut lines: Vec<String> = Vec::new();
    let (inputs, code) = open_inputs(shell, name, &files, io).await;
    for (_, input) in inputs {
        let mut input = input.lock().await;
        while let Some(line) = input.read_line().await {
            lines.push(String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned());
        }
    }
    if name == "sort" {
        if has('n') {
            lines.sort_by_key(|l| {
                l.trim().split(|c: char| !c.is_ascii_digit() && c != '-').next().and_then(|n| n.parse::<i64>().ok())
            });
        } else {
            lines.sort();
        }
        if has('r') {
            lines.reverse();
        }
    }
    let counted: Vec<(usize, String)> = lines.into_iter().fold(Vec::new(), |mut runs, line| {
        match runs.last_mut() {
            Some((count, last)) if *last == line && (name == "uniq" || has('u')) => *count += 1,
            _ => runs.push((1, line)),
        }
        runs
    });
    for (count, line) in counted {
        let text = if name == "uniq" && has('c') { format!("{count:7} {line}\n") } else { format!("{line}\n") };
        print(&io.stdout, text).await?;
    }
    Ok(code)
}

pub async fn tr(args: &[String], io: &Stdio) -> Code {
    let (options, sets) = parse_options(args, "");
    let delete = options.iter().any(|(l, _)| *l == 'd');
    let set = |index: usize| -> Vec<u8> {
        let text = unescape(sets.get(index).map_or("", String::as_str)).into_bytes();
        let mut out = Vec::new();
        let mut at = 0;
        while at < text.len() {
            if at + 2 < text.len() && text[at + 1] == b'-' {
                out.extend(text[at]..=text[at + 2]);
                at += 3;
            } else {
                out.push(text[at]);
                at += 1;
            }
        }
        out
    };
    let (from, to) = (set(0), set(1));
    while let Some(chunk) = io.stdin.lock().await.read_chunk().await {
        let translate = |byte: u8| match from.iter().position(|b| *b == byte) {
            Some(_) if delete => None,
            Some(at) => to.get(at).or(to.last()).copied().or(Some(byte)),
            None => Some(byte),
        };
        let out: Vec<u8> = chunk.iter().copied().filter_map(translate).collect();
        io.stdout.send(Bytes::from(out)).await?;
    }
    Ok(0)
}

pub async fn cut(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (options, files) = parse_options(args, "dfc");
    let delimiter = option_value(&options, 'd').unwrap_or("\t").to_owned();
    let positions: Vec<usize> =
        option_value(&options, 'f').unwrap_or("1").split(',').filter_map(|f| f.parse().ok()).collect();
    let (inputs, code) = open_inputs(shell, "cut", &files, io).await;
    for (_, input) in inputs {
        let mut input = input.lock().await;
        while let Some(line) = input.read_line().await {
            let line = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            let fields: Vec<&str> = line.split(delimiter.as_str()).collect();
            let selected: Vec<&str> = positions.iter().filter_map(|n| fields.get(n.checked_sub(1)?).copied()).collect();
            print(&io.stdout, format!("{}\n", selected.join(&delimiter))).await?;
        }
    }
    Ok(code)
}

pub async fn base64(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let (options, files) = parse_options(args, "w");
    let decode = options.iter().any(|(l, _)| *l == 'd');
    let mut all = Vec::new();
    let (inputs, code) = open_inputs(shell, "base64", &files, io).await;
    for (_, input) in inputs {
        let mut input = input.lock().await;
        while let Some(chunk) = input.read_chunk().await {
            all.extend_from_slice(&chunk);
        }
    }
    if !decode {
        print(&io.stdout, format!("{}\n", STANDARD.encode(all))).await?;
        return Ok(code);
    }
    all.retain(|b| !b.is_ascii_whitespace());
    match STANDARD.decode(all) {
        Ok(bytes) => {
            print(&io.stdout, bytes).await?;
            Ok(code)
        }
        Err(_) => {
            io.error("base64: invalid input").await;
            Ok(1)
        }
    }
}
