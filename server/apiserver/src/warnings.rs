//! `Warning` headers of responses, with the limits of kube-apiserver.

use std::collections::HashSet;

use http::HeaderMap;
use http::header::{HeaderValue, WARNING};

/// Maximum total length of the warnings of a response in characters.
const MAX_TOTAL_CHARS: usize = 4 * 1024;
/// Maximum length of each warning in characters, if the total exceeds its limit.
const MAX_CHARS_PER_WARNING: usize = 256;

/// Adds a `Warning` header per distinct text. Above the limit, texts are truncated and the last ones omitted. Texts with
/// control characters are omitted: they are not valid in a header.
pub fn append(headers: &mut HeaderMap, warnings: &[String]) {
    let is_valid = |text: &&String| !text.is_empty() && !text.chars().any(char::is_control);
    let mut seen = HashSet::new();
    let all: Vec<&String> = warnings.iter().filter(is_valid).filter(|text| seen.insert(*text)).collect();
    let length = |text: &str| text.chars().count();
    let must_truncate = all.iter().map(|text| length(text)).sum::<usize>() > MAX_TOTAL_CHARS;
    let mut total_chars = 0;
    for text in all {
        if must_truncate && total_chars >= MAX_TOTAL_CHARS {
            break;
        }
        let text: String =
            if must_truncate { text.chars().take(MAX_CHARS_PER_WARNING).collect() } else { text.clone() };
        total_chars += length(&text);
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(header) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            headers.append(WARNING, header);
        }
    }
}
