//! Exact output of commands: in a pipe, separately for each stream, and in a terminal, with colours. Ages and times
//! vary and are replaced by placeholders.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::Fleet;

const PIPE: &str = include_str!("pipe.txt");
const TERMINAL: &str = include_str!("terminal.txt");
/// Prefix of command lines in these files.
const PROMPT: &str = "$ crowsnest ";

/// Runs each command of the files and compares its output.
pub fn check_output(fleet: &Fleet) -> Result<()> {
    let mut transcript = String::new();
    for line in commands(PIPE) {
        let output = fleet.crowsnest(&words(line))?;
        let err: String = output.err.lines().map(|line| format!("! {line}").trim_end().to_owned() + "\n").collect();
        transcript.push_str(&format!(
            "{PROMPT}{line}\n{}{}= {}\n",
            replace_variable_values(&output.out),
            replace_variable_values(&err),
            format_code(output.code)
        ));
    }
    ensure!(transcript == PIPE, "commands print in a pipe:\n{transcript}");
    let mut transcript = String::new();
    for line in commands(TERMINAL) {
        let (ended, shown) = fleet.crowsnest_terminal(&words(line))?.close_input()?;
        transcript.push_str(&format!(
            "{PROMPT}{line}\n{}= {}\n",
            replace_variable_values(&visible_text(&shown)),
            format_code(ended)
        ));
    }
    ensure!(transcript == TERMINAL, "commands print in a terminal:\n{transcript}");
    check_pager(fleet)
}

/// A pager shows output and messages, with the colours of a terminal.
fn check_pager(fleet: &Fleet) -> Result<()> {
    let environment = [("CROWSNEST_PAGER", "sed 's/^/page: /'")];
    let args = ["search", "kind:pod", "label:app=both", "sort:cluster", "--limit", "1"];
    let (ended, shown) = fleet.crowsnest_terminal_with_env(&args, &environment)?.close_input()?;
    let shown = visible_text(&shown);
    ensure!(ended == Some(0) && shown.lines().all(|line| line.starts_with("page: ")), "{ended:?} {shown:?}");
    ensure!(shown.contains("\u{241b}[32mRunning\u{241b}[0m") && shown.contains("page: showing 1 of 2"), "{shown:?}");
    // Watches are streamed without a pager, and their errors are reported.
    let (ended, shown) =
        fleet.crowsnest_terminal_with_env(&["get", "pods", "-C", "nosuch"], &environment)?.close_input()?;
    ensure!(ended == Some(1) && visible_text(&shown).contains("error: "), "{ended:?} {shown:?}");
    Ok(())
}

fn commands(golden: &str) -> impl Iterator<Item = &str> {
    golden.lines().filter_map(|line| line.strip_prefix(PROMPT))
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn format_code(code: Option<i32>) -> String {
    code.map_or_else(|| "by a signal".to_owned(), |code| code.to_string())
}

/// The text that a terminal shows: text before a sequence that clears its line is removed. Other escape sequences are
/// kept visible.
fn visible_text(output: &str) -> String {
    let lines = output.split("\r\n").map(|line| line.rsplit("\r\u{1b}[K").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n").replace('\u{1b}', "\u{241b}")
}

/// Replaces ages with AGE and times with TIME.
fn replace_variable_values(text: &str) -> String {
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
    ensure!(replace_variable_values("web   1/1   2m30s\nat 2026-01-01T00:00:00Z") == "web   1/1   AGE\nat TIME");
    ensure!(replace_variable_values("sss 10 m1 5") == "sss 10 m1 5");
    ensure!(visible_text("\r\u{1b}[K| searching\r\u{1b}[KNAME\r\nweb\r\n") == "NAME\nweb\n");
    let first = commands("$ crowsnest get pods\n= 0\n").next().context("no command is parsed")?;
    ensure!(words(first) == ["get", "pods"]);
    Ok(())
}
