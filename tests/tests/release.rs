//! The files of a release, as built by `.ci/release` on this machine: the archive runs, checksums and the plugin's
//! manifest match the archive, charts and manifests reference the image, SBOMs list the shipped components.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, binary, repository_root, run_release_script};
use serde_json::Value;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const REPOSITORY: &str = "https://git.example/crowsnest/crowsnest";
const IMAGE: &str = "registry.example/crowsnest";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const MANIFESTS: [&str; 4] =
    ["crowsnest.yaml", "crowsnest-several.yaml", "crowsnest-external.yaml", "crowsnest-agent.yaml"];

/// Runs a command that must succeed; returns its standard output.
fn run_ok(command: &mut Command) -> Result<String> {
    let output = CommandOutput::parse(&command.output().with_context(|| format!("{command:?}"))?)?;
    ensure!(output.code == Some(0), "{command:?}: {output:?}");
    Ok(output.out)
}

fn read_yaml(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("cannot decode {}", path.display()))
}

#[test]
fn a_release_is_complete() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("dist");
    let (binary, tag) = (binary()?.display().to_string(), format!("v{VERSION}"));
    let options =
        ["--tag", &tag, "--binary", &binary, "--repository", REPOSITORY, "--image", IMAGE, "--digest", DIGEST];
    if !run_release_script("all", &out, &options)? {
        return Ok(());
    }
    let archive = check_archive(&out, folder.path())?;
    let checksum = check_checksums(&out, &archive)?;
    check_plugin_manifest(&out, &archive, &checksum)?;
    for name in MANIFESTS {
        check_image_of_manifest(&out.join(name)).with_context(|| name.to_owned())?;
    }
    check_image_of_charts(&out)?;
    check_sboms(&out)
}

/// Runs the binary of the archive; returns the archive's file name.
fn check_archive(out: &Path, scratch: &Path) -> Result<String> {
    let names = fs::read_dir(out)?.map(|entry| Ok(entry?.file_name().display().to_string()));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    let archive = names.into_iter().find(|name| name.ends_with(".tar.gz")).context("the release has no archive")?;
    run_ok(Command::new("tar").arg("-xzf").arg(out.join(&archive)).arg("-C").arg(scratch))?;
    let version = run_ok(Command::new(scratch.join("crowsnest")).arg("--version"))?;
    ensure!(version.contains(VERSION), "{version}");
    ensure!(fs::read(scratch.join("LICENSE"))? == fs::read(repository_root().join("LICENSE"))?);
    Ok(archive)
}

/// Verifies all checksums; returns the checksum of the archive.
fn check_checksums(out: &Path, archive: &str) -> Result<String> {
    let checked = run_ok(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(out))?;
    ensure!(checked.lines().count() == fs::read_dir(out)?.count() - 1, "{checked}");
    let sums = fs::read_to_string(out.join("SHA256SUMS"))?;
    let line =
        sums.lines().find(|line| line.ends_with(&format!("  {archive}"))).context("the archive has no checksum")?;
    Ok(line.split_whitespace().next().unwrap_or_default().to_owned())
}

/// Checks that the krew manifest references the archive.
fn check_plugin_manifest(out: &Path, archive: &str, checksum: &str) -> Result<()> {
    let plugin = read_yaml(&out.join("crowsnest-krew.yaml"))?;
    let platforms = plugin["spec"]["platforms"].as_array().context("the plugin manifest has no platforms")?;
    ensure!(
        plugin["kind"] == "Plugin" && plugin["metadata"]["name"] == "crowsnest" && platforms.len() == 1,
        "{plugin:#}"
    );
    ensure!(plugin["spec"]["version"] == format!("v{VERSION}") && platforms[0]["bin"] == "crowsnest", "{plugin:#}");
    let uri = format!("{REPOSITORY}/releases/download/v{VERSION}/{archive}");
    ensure!(platforms[0]["uri"] == uri && platforms[0]["sha256"] == checksum, "{plugin:#}");
    let labels = &platforms[0]["selector"]["matchLabels"];
    let platform = [&labels["os"], &labels["arch"]].map(|label| label.as_str().unwrap_or_default()).join("-");
    ensure!(archive == format!("crowsnest-{platform}.tar.gz"), "{archive}: {plugin:#}");
    Ok(())
}

/// Collects the values of all fields `image`.
fn collect_images<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| match value {
            Value::String(image) if key == "image" => drop(found.insert(image)),
            value => collect_images(value, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| collect_images(item, found)),
        _ => {}
    }
}

fn check_image_of_manifest(path: &Path) -> Result<()> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(path)?)?;
    ensure!(objects.iter().all(|object| object["kind"].is_string() && object["metadata"]["name"].is_string()));
    let mut found = BTreeSet::new();
    objects.iter().for_each(|object| collect_images(object, &mut found));
    ensure!(found.contains(format!("{IMAGE}@{DIGEST}").as_str()), "{found:?}");
    ensure!(found.iter().all(|image| !image.starts_with("crowsnest")), "{found:?}");
    Ok(())
}

fn check_image_of_charts(out: &Path) -> Result<()> {
    for chart in ["crowsnest", "crowsnest-agent"] {
        let archive = out.join(format!("{chart}-{VERSION}.tgz"));
        let values = run_ok(Command::new("tar").arg("-xzOf").arg(archive).arg(format!("{chart}/values.yaml")))?;
        let values: Value = serde_saphyr::from_str(&values)?;
        ensure!(values["image"]["repository"] == IMAGE && values["image"]["digest"] == DIGEST, "{chart}: {values:#}");
    }
    Ok(())
}

/// Checks that the SBOMs list shipped dependencies and no development dependencies.
fn check_sboms(out: &Path) -> Result<()> {
    for (name, shipped, development) in [("crowsnest", "tantivy", "proptest"), ("crowsnest-web", "react", "vitest")] {
        let sbom = read_yaml(&out.join(format!("{name}.cdx.json")))?;
        let components = sbom["components"].as_array().context("the SBOM has no components")?;
        let names: BTreeSet<&str> = components.iter().filter_map(|component| component["name"].as_str()).collect();
        ensure!(
            sbom["bomFormat"] == "CycloneDX" && names.contains(shipped) && !names.contains(development),
            "{name}: {names:?}"
        );
    }
    Ok(())
}
