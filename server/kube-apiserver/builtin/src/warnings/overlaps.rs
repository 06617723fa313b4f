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
        let source_text =
            if name_field.is_empty() { kind.to_owned() } else { format!("{kind} \"{}\"", text(source, name_field)) };
        out.extend(
            find_overlaps(collect_files(source, "")).iter().map(|overlap| format_warning(name, &source_text, overlap)),
        );
    }
    if is_set(volume, "projected") {
        out.extend(projected_warnings(name, items(volume, "projected.sources")));
    }
    out
}

fn format_warning(volume: &str, kind: &str, overlap: &str) -> String {
    format!("volume \"{volume}\" ({kind}): overlapping paths: {overlap}")
}

fn collect_files(source: &Value, source_name: &str) -> Vec<File> {
    let file = |item: &Value| File {
        path: text(item, "path").trim_end_matches('/').to_owned(),
        source: source_name.to_owned(),
    };
    items(source, "items").iter().map(file).collect()
}

fn projected_warnings(volume: &str, sources: &[Value]) -> Vec<String> {
    let (mut out, mut all) = (Vec::new(), Vec::new());
    for source in sources {
        if source.as_object().is_none_or(serde_json::Map::is_empty) {
            out.push(format!("volume \"{volume}\" (Projected) has no sources provided"));
            continue;
        }
        for file in projected_files(source) {
            out.extend(
                overlapping_files(&all, &file)
                    .map(|other| format_warning(volume, "Projected", &format!("{file} with {other}"))),
            );
            all.push(file);
        }
    }
    out
}

fn projected_files(source: &Value) -> Vec<File> {
    for (field, kind) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        if is_set(source, &format!("{field}.items")) {
            let name = text(source, &format!("{field}.name"));
            return collect_files(at(source, field), &format!("{kind} \"{name}\""));
        }
    }
    if is_set(source, "downwardAPI.items") {
        return collect_files(at(source, "downwardAPI"), "DownwardAPI");
    }
    let file_at = |path: &str, source_name: String| {
        let path = text(source, path).trim_end_matches('/').to_owned();
        File { path, source: source_name }
    };
    if is_set(source, "serviceAccountToken") {
        return vec![file_at("serviceAccountToken.path", "ServiceAccountToken".into())];
    }
    if is_set(source, "clusterTrustBundle") {
        let bundle = text(source, "clusterTrustBundle.name");
        let name = if bundle.is_empty() { text(source, "clusterTrustBundle.signerName") } else { bundle };
        return vec![file_at("clusterTrustBundle.path", format!("ClusterTrustBundle \"{name}\""))];
    }
    let parts = [("certificateChainPath", "chain"), ("keyPath", "key"), ("credentialBundlePath", "credential bundle")];
    let parts = parts.iter().map(|(field, part)| (format!("podCertificate.{field}"), part));
    let parts = parts.filter(|(path, _)| !text(source, path).is_empty());
    parts.map(|(path, part)| file_at(&path, format!("PodCertificate {part}"))).collect()
}

fn find_overlaps(files: Vec<File>) -> Vec<String> {
    let mut out = Vec::new();
    for (index, file) in files.iter().enumerate() {
        out.extend(overlapping_files(&files[..index], file).map(|other| format!("{file} with {other}")));
    }
    out
}

/// Files at the same path, above or below it.
fn overlapping_files<'a>(files: &'a [File], file: &'a File) -> impl Iterator<Item = &'a File> {
    let is_below = |path: &str, parent: &str| format!("{path}/").starts_with(&format!("{parent}/"));
    files.iter().filter(move |other| {
        !file.path.is_empty()
            && !other.path.is_empty()
            && (*other == file || is_below(&other.path, &file.path) || is_below(&file.path, &other.path))
    })
}
