//! `--check`: lists the scripts of customizations and validates their syntax.

use std::io::Write;

use crowsnest_interpreter::customized::declarative;

use super::customization;
use super::files::Document;
use super::rules::{RULES, Rule};

const RULER: &str = "-----------------------------------";
/// Spaces after a column's longest cell.
const COLUMN_SPACING: usize = 3;
const MIN_COLUMN_WIDTH: usize = 6;

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    Unset,
    Error(String),
}

/// Column widths, which only grow, as in kubectl's table writer.
#[derive(Debug)]
struct Widths([usize; 2]);

impl Widths {
    fn grow<'c>(&mut self, column: usize, cells: impl Iterator<Item = &'c str>) -> usize {
        let longest = cells.map(|cell| cell.chars().count() + COLUMN_SPACING).max().unwrap_or_default();
        let width = &mut self.0[column];
        *width = (*width).max(longest);
        *width
    }
}

/// Validates all scripts of all documents and prints the errors; true if all are valid.
pub(super) fn check(documents: &[Document], out: &mut impl Write) -> anyhow::Result<bool> {
    let mut all_valid = true;
    let mut widths = Widths([MIN_COLUMN_WIDTH; 2]);
    for document in documents {
        all_valid &= check_one(document, &mut widths, out)?;
    }
    Ok(all_valid)
}

fn check_one(document: &Document, widths: &mut Widths, out: &mut impl Write) -> std::io::Result<bool> {
    writeln!(out, "{RULER}")?;
    let name = document.body.pointer("/metadata/name").and_then(|name| name.as_str()).filter(|name| !name.is_empty());
    writeln!(out, "SOURCE: {}", name.unwrap_or(&document.source))?;
    let customization = match customization(document) {
        Ok(customization) => customization,
        Err(error) => {
            writeln!(out, "{error:#}")?;
            return Ok(false);
        }
    };
    let target = &customization.spec.target;
    for (value, field) in [(&target.kind, "kind"), (&target.api_version, "apiVersion")] {
        if value.is_empty() {
            writeln!(out, "target.{field} no set")?;
            return Ok(false);
        }
    }
    let line = format!("TARGET: {} {}", target.api_version, target.kind);
    let width = widths.grow(0, std::iter::once(line.as_str()));
    writeln!(out, "{line:<width$}\nRULERS:")?;
    let verdicts =
        RULES.iter().map(|rule| match rule.script(&customization.spec.customizations).map(declarative::compile) {
            None => Verdict::Unset,
            Some(Ok(())) => Verdict::Pass,
            Some(Err(error)) => Verdict::Error(format!("ERROR: {}", error.to_string().trim())),
        });
    let verdicts: Vec<Verdict> = verdicts.collect();
    print(&verdicts, widths, out)?;
    Ok(!verdicts.iter().any(|verdict| matches!(verdict, Verdict::Error(_))))
}

fn print(verdicts: &[Verdict], widths: &mut Widths, out: &mut impl Write) -> std::io::Result<()> {
    let names: Vec<String> = RULES.iter().map(Rule::name).map(|name| format!("    {name}:")).collect();
    let width = widths.grow(0, names.iter().map(String::as_str));
    let mut names = names.iter();
    let is_error = |verdict: &Verdict| matches!(verdict, Verdict::Error(_));
    for block in verdicts.chunk_by(|left, right| is_error(left) == is_error(right)) {
        let errors = block.iter().filter_map(|verdict| match verdict {
            Verdict::Error(text) => Some(text.as_str()),
            Verdict::Pass | Verdict::Unset => None,
        });
        let error_width = if is_error(&block[0]) { widths.grow(1, errors) } else { 0 };
        for (verdict, name) in block.iter().zip(names.by_ref()) {
            match verdict {
                Verdict::Pass => writeln!(out, "{name:<width$}PASS")?,
                Verdict::Unset => writeln!(out, "{name:<width$}UNSET")?,
                Verdict::Error(text) => writeln!(out, "{name:<width$}{text:<error_width$}")?,
            }
        }
    }
    Ok(())
}
