//! Warnings for overlapping files in a volume: the order in which a kubelet writes them is undefined.

use serde_json::Value;

use super::super::object::{at, is_set, items, text};

/// A path in a volume and its source, where known.
#[derive(Clone, PartialEq)]
struct File {
    path: String,
    source: String,
}

impl std::fmt::Display for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.source.as_str() {
            "" => write!(f, "\"{}\"", self.path),
            source => write!(f, "\"{}\" ({source})", self.path),
        }
    }
}

/// Warnings for a volume of a pod.
pub(super) fn volume_warnings(volume: &Value) -> Vec<String> {
    let name = text(volume, "name");
    let sources =
        [("configMap", "name", "ConfigMap"), ("secret", "secretName", "Secret"), ("downwardAPI", "", "DownwardAPI")];
    let mut out = Vec::new();
    for (field, name_field, kind) in sources {
        let source = at(volume, field);
        let shown =
            if name_field.is_empty() { kind.to_owned() } else { format!("{kind} \"{}\"", text(source, name_field)) };
        out.extend(collisions(files(source, "")).iter().map(|overlap| warning(name, &shown, overlap)));
    }
    if is_set(volume, "projected") {
        out.extend(projected(name, items(volume, "projected.sources")));
    }
    out
}

fn warning(volume: &str, kind: &str, overlap: &str) -> String {
    format!("volume \"{volume}\" ({kind}): overlapping paths: {overlap}")
}

fn files(source: &Value, source_name: &str) -> Vec<File> {
    let file = |item: &Value| File {
        path: text(item, "path").trim_end_matches('/').to_owned(),
        source: source_name.to_owned(),
    };
    items(source, "items").iter().map(file).collect()
}

fn projected(volume: &str, sources: &[Value]) -> Vec<String> {
    let (mut out, mut all) = (Vec::new(), Vec::new());
    for source in sources {
        if source.as_object().is_none_or(serde_json::Map::is_empty) {
            out.push(format!("volume \"{volume}\" (Projected) has no sources provided"));
            continue;
        }
        for file in projection(source) {
            out.extend(
                overlapping(&all, &file).map(|other| warning(volume, "Projected", &format!("{file} with {other}"))),
            );
            all.push(file);
        }
    }
    out
}

fn projection(source: &Value) -> Vec<File> {
    for (field, kind) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        if is_set(source, &format!("{field}.items")) {
            let name = text(source, &format!("{field}.name"));
            return files(at(source, field), &format!("{kind} \"{name}\""));
        }
    }
    if is_set(source, "downwardAPI.items") {
        return files(at(source, "downwardAPI"), "DownwardAPI");
    }
    let one = |path: &str, source_name: String| {
        let path = text(source, path).trim_end_matches('/').to_owned();
        File { path, source: source_name }
    };
    if is_set(source, "serviceAccountToken") {
        return vec![one("serviceAccountToken.path", "ServiceAccountToken".into())];
    }
    if is_set(source, "clusterTrustBundle") {
        let named = text(source, "clusterTrustBundle.name");
        let name = if named.is_empty() { text(source, "clusterTrustBundle.signerName") } else { named };
        return vec![one("clusterTrustBundle.path", format!("ClusterTrustBundle \"{name}\""))];
    }
    let parts = [("certificateChainPath", "chain"), ("keyPath", "key"), ("credentialBundlePath", "credential bundle")];
    let parts = parts.iter().map(|(field, part)| (format!("podCertificate.{field}"), part));
    let parts = parts.filter(|(path, _)| !text(source, path).is_empty());
    parts.map(|(path, part)| one(&path, format!("PodCertificate {part}"))).collect()
}

fn collisions(files: Vec<File>) -> Vec<String> {
    let mut out = Vec::new();
    for (index, file) in files.iter().enumerate() {
        out.extend(overlapping(&files[..index], file).map(|other| format!("{file} with {other}")));
    }
    out
}

/// Files at the same path, above or below it.
fn overlapping<'a>(all: &'a [File], file: &'a File) -> impl Iterator<Item = &'a File> {
    let below = |one: &str, other: &str| format!("{one}/").starts_with(&format!("{other}/"));
    all.iter().filter(move |other| {
        !file.path.is_empty()
            && !other.path.is_empty()
            && (*other == file || below(&other.path, &file.path) || below(&file.path, &other.path))
    })
}
