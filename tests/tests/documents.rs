//! Documentation: link targets and source paths exist, commands in shell blocks are tested, and both languages of the README have
//! the same commands.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Markdown pages for users and contributors, with their text.
fn pages() -> Result<Vec<(PathBuf, String)>> {
    let mut pages = Vec::new();
    for folder in [repository_root(), repository_root().join("docs"), repository_root().join("docs/karmada")] {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "md") {
                let text = fs::read_to_string(&path)?;
                pages.push((path, text));
            }
        }
    }
    Ok(pages)
}

#[test]
fn link_targets_exist() -> Result<()> {
    let mut links = 0;
    for (path, text) in pages()? {
        for link in link_targets(&text) {
            let file = link.split('#').next().unwrap_or_default();
            // The repository's releases are pages of GitHub, not files.
            let is_external = file.contains("://") || file.starts_with("mailto:") || file.starts_with("../../releases");
            if file.is_empty() || is_external {
                continue;
            }
            links += 1;
            ensure!(path.with_file_name("").join(file).exists(), "{}: {file} does not exist", path.display());
        }
    }
    ensure!(links > 50, "only {links} links were checked");
    Ok(())
}

#[test]
fn source_paths_exist() -> Result<()> {
    let mut paths = 0;
    // The changelog contains paths of earlier versions.
    for (page, text) in pages()?.iter().filter(|(page, _)| !page.ends_with("CHANGELOG.md")) {
        for span in code_spans(text).iter().filter(|span| is_source_path(span)) {
            for path in expand_braces(span) {
                paths += 1;
                ensure!(repository_root().join(&path).exists(), "{}: {path} does not exist", page.display());
            }
        }
    }
    ensure!(paths > 500, "only {paths} paths were checked");
    Ok(())
}

#[test]
fn names_in_source_files_exist() -> Result<()> {
    let mut names = 0;
    for (page, text) in pages()?.iter().filter(|(page, _)| !page.ends_with("CHANGELOG.md")) {
        for (file, name) in names_in_files(text) {
            names += 1;
            let source =
                fs::read_to_string(repository_root().join(&file)).with_context(|| format!("cannot read {file}"))?;
            let mut words = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            ensure!(words.any(|word| word == name), "{}: {file} does not contain {name}", page.display());
        }
    }
    ensure!(names > 100, "only {names} names were checked");
    Ok(())
}

/// Names in parentheses after the path of a source file, without their modules, each with the path.
fn names_in_files(text: &str) -> Vec<(String, String)> {
    let is_name = |span: &str| span.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let prose = prose(text);
    let parts: Vec<&str> = prose.split('`').collect();
    let mut names = Vec::new();
    // The last path, and whether its parentheses are open.
    let mut current: Option<(&str, bool)> = None;
    for pair in parts.chunks_exact(2) {
        let &[between, span] = pair else { continue };
        let is_listed = matches!((current, between.trim()), (Some((_, false)), "(") | (Some((_, true)), ","));
        current = match current {
            Some((file, _)) if is_listed && is_name(span) => {
                let name = span.rsplit("::").next().unwrap_or_default();
                names.push((file.to_owned(), name.to_owned()));
                Some((file, true))
            }
            _ => (is_source_path(span) && span.ends_with(".rs") && !span.contains('{')).then_some((span, false)),
        };
    }
    names
}

/// Returns true if a code span is the path of a source file or folder, relative to the root of the repository. Patterns
/// and placeholders do not count as paths.
fn is_source_path(span: &str) -> bool {
    let is_pattern = span.contains(|c: char| c.is_whitespace() || "<*…".contains(c));
    let is_source = span.ends_with(".rs") || span.contains("/src") || span.starts_with("tests/");
    span.contains('/') && is_source && !is_pattern
}

/// Paths of a brace list: `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn expand_braces(path: &str) -> Vec<String> {
    let Some((head, (list, tail))) = path.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)))
    else {
        return vec![path.to_owned()];
    };
    list.split(',').flat_map(|item| expand_braces(&format!("{head}{item}{tail}"))).collect()
}

/// The text of a page without its indented code blocks.
fn prose(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("    ")).collect::<Vec<_>>().join("\n")
}

/// Contents of the code spans of a page.
fn code_spans(text: &str) -> Vec<String> {
    prose(text).split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Link targets, except those in code.
fn link_targets(text: &str) -> Vec<String> {
    let outside: String = prose(text).split('`').step_by(2).collect();
    outside.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link.to_owned()).collect()
}

/// Commands in the indented code blocks of a page, without comments.
fn commands(name: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(repository_root().join(name)).with_context(|| format!("cannot read {name}"))?;
    let code = text.lines().filter_map(|line| line.strip_prefix("    "));
    Ok(code.map(|line| line.split(" #").next().unwrap_or_default().trim_end().to_owned()).collect())
}

#[test]
fn both_languages_have_the_same_commands() -> Result<()> {
    let (english, chinese) = (commands("README.md")?, commands("README.zh-CN.md")?);
    ensure!(english.len() > 30, "README.md has only {} commands", english.len());
    for (one, other) in english.iter().zip(&chinese) {
        ensure!(one == other, "README.zh-CN.md has {other:?} instead of {one:?}");
    }
    ensure!(
        english.len() == chinese.len(),
        "README.md has {} commands, README.zh-CN.md {}",
        english.len(),
        chinese.len()
    );
    Ok(())
}

/// Pages with shell blocks. Tests run the kubectl commands in ACCESS.md and MCP.md, and parse the `crowsnest` commands of all three
/// pages (`tests/tests/access.rs`, `tests/tests/mcp.rs`, `server/src/commands/line/complete.rs`).
const PAGES_WITH_SHELL_BLOCKS: [&str; 3] = ["ACCESS.md", "AUTHORIZATION.md", "MCP.md"];

#[test]
fn shell_blocks_are_in_tested_pages() -> Result<()> {
    let has_block = |text: &str| text.lines().any(|line| line == "```sh");
    let pages = pages()?.into_iter().filter(|(_, text)| has_block(text));
    let mut names: Vec<String> =
        pages.filter_map(|(path, _)| path.file_name().map(|name| name.to_string_lossy().into_owned())).collect();
    names.sort();
    ensure!(names == PAGES_WITH_SHELL_BLOCKS, "pages with shell blocks are {names:?}");
    Ok(())
}

/// The table in CONTRIBUTING.md lists checks that `.ci/run` leaves to jobs of the workflow.
#[test]
fn documented_checks_are_in_the_workflow() -> Result<()> {
    let read =
        |name: &str| fs::read_to_string(repository_root().join(name)).with_context(|| format!("cannot read {name}"));
    let (page, workflow) = (read("CONTRIBUTING.md")?, read(".github/workflows/ci.yml")?);
    let checks =
        page.split("\n## ").find(|section| section.starts_with("Checks\n")).context("no section \"Checks\"")?;
    let rows = checks.lines().filter(|line| line.starts_with("| `"));
    let code = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let commands: Vec<&str> = code.filter(|code| code.starts_with(".ci/")).collect();
    ensure!(commands.len() > 5, "the table has only these checks: {commands:?}");
    for command in commands {
        // Without arguments such as a version.
        let check = command.split(' ').take(2).collect::<Vec<_>>().join(" ");
        ensure!(workflow.contains(&check), "no job of the workflow runs {check}");
    }
    Ok(())
}
