//! Dependencies: every licence is allowed by deny.toml, no banned crate is used, and all crates are from the
//! registry. `cargo deny`, which also checks advisories, runs where there is network access (.github/workflows).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn licences_and_sources_are_allowed() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rules = fs::read_to_string(root.join("deny.toml"))?;
    let allowed = section(&rules, "\nallow = [", "]")?;
    let exceptions = section(&rules, "\nexceptions = [", "\n")?;
    let banned = section(&rules, "\ndeny = [", "\n]")?;
    let output = Command::new(env!("CARGO"))
        // This includes dependencies for other platforms, which this build has not downloaded.
        .args(["metadata", "--locked", "--all-features", "--format-version", "1"])
        .current_dir(&root)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    ensure!(packages.len() > 300, "only {} packages were checked", packages.len());
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(source) = package["source"].as_str() else { continue };
        ensure!(source == REGISTRY, "{name} comes from {source}");
        ensure!(!banned.contains(name), "{name} is banned by deny.toml");
        let licence = package["license"].as_str().unwrap_or_default();
        let is_satisfied = is_allowed(licence, &allowed) || exceptions.contains(name);
        ensure!(is_satisfied, "{name} is under {licence:?}, which deny.toml does not allow");
    }
    Ok(())
}

/// The quoted strings between two marks.
fn section<'a>(text: &'a str, begin: &str, end: &str) -> Result<BTreeSet<&'a str>> {
    let (_, rest) = text.split_once(begin).with_context(|| format!("deny.toml has no {begin}"))?;
    let (inside, _) = rest.split_once(end).with_context(|| format!("deny.toml has no end of {begin}"))?;
    Ok(inside.split('"').skip(1).step_by(2).collect())
}

/// Evaluates an SPDX expression: any of the alternatives, each with all its parts. A slash is an old form of OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let mut words: Vec<String> = Vec::new();
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ").replace(" WITH ", "~");
    words.extend(spaced.split_whitespace().map(|word| word.replace('~', " WITH ")));
    let mut rest = words.as_slice();
    evaluate_or(&mut rest, allowed) && rest.is_empty()
}

/// Evaluates alternatives separated by OR.
fn evaluate_or(rest: &mut &[String], allowed: &BTreeSet<&str>) -> bool {
    let mut is_satisfied = evaluate_and(rest, allowed);
    while rest.first().is_some_and(|word| word == "OR") {
        *rest = &rest[1..];
        is_satisfied |= evaluate_and(rest, allowed);
    }
    is_satisfied
}

/// Evaluates parts separated by AND.
fn evaluate_and(rest: &mut &[String], allowed: &BTreeSet<&str>) -> bool {
    let mut is_satisfied = evaluate_term(rest, allowed);
    while rest.first().is_some_and(|word| word == "AND") {
        *rest = &rest[1..];
        is_satisfied &= evaluate_term(rest, allowed);
    }
    is_satisfied
}

/// Evaluates a licence or an expression in parentheses.
fn evaluate_term(rest: &mut &[String], allowed: &BTreeSet<&str>) -> bool {
    let Some((word, after)) = rest.split_first() else { return false };
    *rest = after;
    if word != "(" {
        return allowed.contains(word.as_str());
    }
    let is_satisfied = evaluate_or(rest, allowed);
    // The closing parenthesis.
    *rest = rest.get(1..).unwrap_or_default();
    is_satisfied
}

#[test]
fn licence_expressions_are_evaluated() {
    let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("GPL-3.0-only OR MIT", true),
        ("GPL-3.0-only AND MIT", false),
        ("(MIT OR GPL-2.0-only) AND ISC", true),
        ("(GPL-3.0-only OR GPL-2.0-only) AND ISC", false),
        ("Unlicense/MIT", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}
