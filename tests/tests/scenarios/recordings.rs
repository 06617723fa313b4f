//! The recordings of the scenarios, with the values that real clusters have instead of the recorded ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::ground::kubernetes_minor;
use crowsnest_tests::repository_root;
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

/// A copy of the scenarios and their recordings.
pub struct Recordings(TempDir);

impl Recordings {
    /// Copies the recordings in `folder`, adapted to the real clusters if the tests run on them.
    pub fn copy(folder: &Path) -> Result<Self> {
        let recordings = Self(tempfile::tempdir()?);
        let copied = Command::new("python3")
            .arg(repository_root().join(".ci/fleet-copy"))
            .args([folder, &recordings.folder()])
            .status()
            .context("cannot start .ci/fleet-copy")?;
        ensure!(copied.success(), "cannot copy the scenarios in {}", folder.display());
        if let Some(minor) = kubernetes_minor() {
            recordings.adapt(minor)?;
        }
        Ok(recordings)
    }

    /// Replaces the values that differ in clusters of this minor version of Kubernetes.
    fn adapt(&self, minor: u32) -> Result<()> {
        let differences: Vec<Difference> = serde_saphyr::from_str(DIFFERENCES).context("differences.yaml")?;
        let applicable =
            |difference: &&Difference| difference.versions.is_empty() || difference.versions.contains(&minor);
        for difference in differences.iter().filter(applicable) {
            let recording = self.folder().join(format!("expected/{}.json", difference.scenario));
            let text =
                fs::read_to_string(&recording).with_context(|| format!("cannot read {}", recording.display()))?;
            let mut value: Value = serde_json::from_str(&text)?;
            let count = replace_equal(&mut value, &difference.recorded, &difference.real);
            ensure!(count > 0, "differences.yaml: {} has no {}", difference.scenario, difference.recorded);
            fs::write(&recording, value.to_string())?;
        }
        Ok(())
    }

    pub fn folder(&self) -> PathBuf {
        self.0.path().join("fleet")
    }
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
