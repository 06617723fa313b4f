//! Exact output of commands: in a pipe, separately for each stream, and in a terminal, with colours. Ages and times vary and
//! are replaced by placeholders.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::Fleet;

const PIPE: &str = include_str!("pipe.txt");
const TERMINAL: &str = include_str!("terminal.txt");
/// Prefix of command lines in these files.
const PROMPT: &str = "$ crowsnest ";

/// Runs each command of the files and compares its output.
pub fn compared(fleet: &Fleet) -> Result<()> {
    let mut transcript = String::new();
    for line in commands(PIPE) {
        let output = fleet.crowsnest(&words(line))?;
        let err: String = output.err.lines().map(|line| format!("! {line}").trim_end().to_owned() + "\n").collect();
        transcript.push_str(&format!("{PROMPT}{line}\n{}{}= {}\n", plain(&output.out), plain(&err), code(output.code)));
    }
    ensure!(transcript == PIPE, "in a pipe commands print:\n{transcript}");
    let mut transcript = String::new();
    for line in commands(TERMINAL) {
        let (ended, shown) = fleet.crowsnest_terminal(&words(line))?.end()?;
        transcript.push_str(&format!("{PROMPT}{line}\n{}= {}\n", plain(&seen(&shown)), code(ended)));
    }
    ensure!(transcript == TERMINAL, "in a terminal commands print:\n{transcript}");
    paged(fleet)
}

/// A pager shows output and messages, with the colours of a terminal.
fn paged(fleet: &Fleet) -> Result<()> {
    let by = [("CROWSNEST_PAGER", "sed 's/^/page: /'")];
    let args = ["search", "kind:pod", "label:app=both", "sort:cluster", "--limit", "1"];
    let (ended, shown) = fleet.crowsnest_terminal_with(&args, &by)?.end()?;
    let shown = seen(&shown);
    ensure!(ended == Some(0) && shown.lines().all(|line| line.starts_with("page: ")), "{ended:?} {shown:?}");
    ensure!(shown.contains("\u{241b}[32mRunning\u{241b}[0m") && shown.contains("page: showing 1 of 2"), "{shown:?}");
    // Watches are streamed without a pager, and their errors are reported.
    let (ended, shown) = fleet.crowsnest_terminal_with(&["get", "pods", "-C", "nosuch"], &by)?.end()?;
    ensure!(ended == Some(1) && seen(&shown).contains("error: "), "{ended:?} {shown:?}");
    Ok(())
}

fn commands(golden: &str) -> impl Iterator<Item = &str> {
    golden.lines().filter_map(|line| line.strip_prefix(PROMPT))
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn code(code: Option<i32>) -> String {
    code.map_or_else(|| "by a signal".to_owned(), |code| code.to_string())
}

/// The visible text of the screen: for a cleared line, the text after it. Escape sequences are shown.
fn seen(shown: &str) -> String {
    let lines = shown.split("\r\n").map(|line| line.rsplit("\r\u{1b}[K").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n").replace('\u{1b}', "\u{241b}")
}

/// Replaces ages by AGE and times by TIME.
fn plain(text: &str) -> String {
    let word = |word: &str| match word {
        word if is_age(word) => "AGE".to_owned(),
        word if is_time(word) => "TIME".to_owned(),
        word => word.to_owned(),
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// `5s`, `2m30s`, `3d4h`.
fn is_age(word: &str) -> bool {
    let numbers: Vec<&str> = word.split_inclusive(['s', 'm', 'h', 'd', 'y']).collect();
    let is_part = |part: &&str| {
        let digits = part.trim_end_matches(['s', 'm', 'h', 'd', 'y']);
        part.len() == digits.len() + 1 && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    !numbers.is_empty() && numbers.iter().all(is_part)
}

/// `2026-01-01T00:00:00Z`
fn is_time(word: &str) -> bool {
    word.len() >= 20 && word.ends_with('Z') && word.as_bytes().get(10) == Some(&b'T')
}

#[test]
fn variable_values_are_replaced() -> Result<()> {
    ensure!(plain("web   1/1   2m30s\nat 2026-01-01T00:00:00Z") == "web   1/1   AGE\nat TIME");
    ensure!(plain("sss 10 m1 5") == "sss 10 m1 5");
    ensure!(seen("\r\u{1b}[K| searching\r\u{1b}[KNAME\r\nweb\r\n") == "NAME\nweb\n");
    let first = commands("$ crowsnest get pods\n= 0\n").next().context("a command")?;
    ensure!(words(first) == ["get", "pods"]);
    Ok(())
}
