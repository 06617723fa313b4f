//! `crowsnest interpret`: validation of customizations, results of their scripts and of built-in rules, and editing.
//! The cases are in `interpret/cases.yaml`; each states the complete expected output.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, binary};
use serde::Deserialize;

const CASES: &str = include_str!("interpret/cases.yaml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    files: BTreeMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Name of the file in [`Cases::files`] that is the standard input.
    input: Option<String>,
    #[serde(default)]
    exit: i32,
    #[serde(default)]
    out: Vec<String>,
    /// Expected lines of standard error. One that ends with `*` is a prefix.
    #[serde(default)]
    err: Vec<String>,
    /// Files and their expected contents after the command.
    #[serde(default)]
    after: BTreeMap<String, String>,
}

#[test]
fn every_case_has_the_expected_output() -> Result<()> {
    let cases: Cases = serde_saphyr::from_str(CASES)?;
    for case in &cases.cases {
        check_case(case, &cases.files).with_context(|| case.name.clone())?;
    }
    Ok(())
}

fn check_case(case: &Case, files: &BTreeMap<String, String>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().context("the path has no parent directory")?)?;
        fs::write(path, text)?;
    }
    let output = run(case, folder.path(), files)?;
    ensure!(output.code == Some(case.exit), "{output:?}");
    let out: Vec<&str> = output.out.lines().collect();
    ensure!(out == case.out, "{}\ninstead of\n{}", output.out, case.out.join("\n"));
    let matches = |(line, expected): (&str, &String)| match expected.strip_suffix('*') {
        Some(start) => line.starts_with(start),
        None => line == expected,
    };
    let is_same = output.err.lines().count() == case.err.len() && output.err.lines().zip(&case.err).all(matches);
    ensure!(is_same, "{}\ninstead of\n{}", output.err, case.err.join("\n"));
    for (name, text) in &case.after {
        let actual = fs::read_to_string(folder.path().join(name))?;
        ensure!(actual == *text, "{name} contains\n{actual}\ninstead of\n{text}");
    }
    Ok(())
}

fn run(case: &Case, folder: &Path, files: &BTreeMap<String, String>) -> Result<CommandOutput> {
    let mut command = Command::new(binary()?);
    command.arg("interpret").args(&case.args).current_dir(folder);
    command.env_remove("KUBE_EDITOR").env_remove("EDITOR").env("TMPDIR", folder).envs(&case.env);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    if let Some(name) = &case.input {
        stdin.write_all(files.get(name).context("unknown input file")?.as_bytes())?;
    }
    drop(stdin);
    CommandOutput::parse(&child.wait_with_output()?)
}
