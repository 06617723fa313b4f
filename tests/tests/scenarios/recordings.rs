//! The recordings of the scenarios, with the values that real clusters have instead of the recorded ones.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::ground::kubernetes_minor;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

const DIFFERENCES: &str = include_str!("differences.yaml");

/// A value of a recording that differs on real clusters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    scenario: String,
    #[expect(dead_code, reason = "for readers of the file")]
    reason: String,
    /// Minor versions of Kubernetes; empty: all.
    #[serde(default)]
    versions: Vec<u32>,
    recorded: Value,
    real: Value,
}

/// The folder with scenarios and recordings.
pub enum Recordings {
    Unchanged(PathBuf),
    /// A copy for real clusters.
    Adapted(TempDir),
}

impl Recordings {
    /// The recordings in `folder`, adapted to the real clusters if the tests run on them.
    pub fn prepare(folder: &Path) -> Result<Self> {
        let Some(minor) = kubernetes_minor() else { return Ok(Self::Unchanged(folder.to_owned())) };
        let differences: Vec<Difference> = serde_saphyr::from_str(DIFFERENCES).context("differences.yaml")?;
        let copy = tempfile::tempdir()?;
        for part in ["scenarios", "expected"] {
            copy_files(&folder.join(part), &copy.path().join(part))?;
        }
        let applicable =
            |difference: &&Difference| difference.versions.is_empty() || difference.versions.contains(&minor);
        for difference in differences.iter().filter(applicable) {
            let recording = copy.path().join(format!("expected/{}.json", difference.scenario));
            let text = fs::read_to_string(&recording).with_context(|| recording.display().to_string())?;
            let mut value: Value = serde_json::from_str(&text)?;
            let count = replace_equal(&mut value, &difference.recorded, &difference.real);
            ensure!(count > 0, "differences.yaml: {} has no {}", difference.scenario, difference.recorded);
            fs::write(&recording, value.to_string())?;
        }
        Ok(Self::Adapted(copy))
    }

    pub fn folder(&self) -> &Path {
        match self {
            Self::Unchanged(folder) => folder,
            Self::Adapted(copy) => copy.path(),
        }
    }
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Replaces each value within `value` that equals `recorded`; returns their number.
fn replace_equal(value: &mut Value, recorded: &Value, real: &Value) -> usize {
    if value == recorded {
        *value = real.clone();
        return 1;
    }
    match value {
        Value::Array(items) => items.iter_mut().map(|item| replace_equal(item, recorded, real)).sum(),
        Value::Object(fields) => fields.values_mut().map(|field| replace_equal(field, recorded, real)).sum(),
        _ => 0,
    }
}

#[test]
fn equal_values_are_replaced_at_any_depth() {
    let mut value = serde_json::json!({"a": [{"b": 1}, {"b": 1, "c": {"b": 1}}], "b": 1});
    let count = replace_equal(&mut value, &serde_json::json!({"b": 1}), &Value::Null);
    assert_eq!((count, value), (2, serde_json::json!({"a": [null, {"b": 1, "c": null}], "b": 1})));
}
