//! The documents: what they link to is there, and the README says the same commands in both languages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn links_lead_somewhere() -> Result<()> {
    let mut links = 0;
    for folder in [root(), root().join("docs"), root().join("docs/karmada")] {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|end| end != "md") {
                continue;
            }
            for link in targets(&fs::read_to_string(&path)?) {
                let file = link.split('#').next().unwrap_or_default();
                // The repository's releases are pages of GitHub, not files.
                let elsewhere =
                    file.contains("://") || file.starts_with("mailto:") || file.starts_with("../../releases");
                if file.is_empty() || elsewhere {
                    continue;
                }
                links += 1;
                ensure!(folder.join(file).exists(), "{}: there is no {file}", path.display());
            }
        }
    }
    ensure!(links > 50, "{links}");
    Ok(())
}

/// What stands in the brackets of `](…)`, but for those in code.
fn targets(text: &str) -> Vec<String> {
    let prose = text.lines().filter(|line| !line.starts_with("    ")).collect::<Vec<_>>().join("\n");
    let outside: String = prose.split('`').step_by(2).collect();
    outside.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link.to_owned()).collect()
}

/// Commands without what is said of them.
fn commands(name: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(root().join(name)).with_context(|| name.to_owned())?;
    let code = text.lines().filter_map(|line| line.strip_prefix("    "));
    Ok(code.map(|line| line.split(" #").next().unwrap_or_default().trim_end().to_owned()).collect())
}

#[test]
fn both_languages_have_the_same_commands() -> Result<()> {
    let (english, chinese) = (commands("README.md")?, commands("README.zh-CN.md")?);
    ensure!(english.len() > 30);
    for (one, other) in english.iter().zip(&chinese) {
        ensure!(one == other, "README.zh-CN.md has {other:?} where README.md has {one:?}");
    }
    ensure!(english.len() == chinese.len(), "{} commands and {}", english.len(), chinese.len());
    Ok(())
}
