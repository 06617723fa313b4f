//! Redaction of Secret values. Keys are kept and values are removed in all Secrets: in Secret objects, in the manifests
//! of a Work, and in Secrets embedded in any other object. Copies of the values in annotations are removed as well
//! ([`crowsnest_apimachinery::secret_copies`]).

use super::IngestOptions;
use super::split::{Fields, ObjectWriter, copy_annotations, copy_metadata};
use super::withheld::{WithheldPath, redact_paths};
use crowsnest_api::propagation::WORKS;
use crowsnest_apimachinery::secret_copies::{contains_secret, is_harmless, secret_values};
use serde_json::value::RawValue;

/// Maximum depth that is searched for Secrets. Deeper values are removed if they may contain one.
const MAX_DEPTH: usize = 64;
pub(super) const SECRET: &str = "Secret";

/// Class of an object by the values that must be removed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedactionClass {
    /// The object contains no such value.
    None,
    Secret,
    /// The manifests of the Work may be any object.
    Work,
    /// The manifest contains the text `Secret`, so it may embed one.
    MayEmbed,
}

impl RedactionClass {
    pub(super) fn new(group: &str, kind: &str, raw: &str, options: &IngestOptions) -> Self {
        let may_embed_secret = !options.secret_values && raw.contains(SECRET);
        match (group, kind) {
            ("", SECRET) if !options.secret_values => Self::Secret,
            _ if WORKS.contains(group, kind)
                && (may_embed_secret || options.withheld.iter().any(|path| path.may_apply_within(raw))) =>
            {
                Self::Work
            }
            ("", SECRET) => Self::None,
            _ if may_embed_secret => Self::MayEmbed,
            _ => Self::None,
        }
    }
}

/// True if a text contains `Secret` or `SecretList` as a word or the end of one: the name of the kind, but not
/// `imagePullSecrets` or `SecretKeyRef`.
pub(super) fn mentions_secret(text: &str) -> bool {
    // Tested first because it is vectorized, and most objects do not contain it.
    text.contains(SECRET)
        && text.match_indices(SECRET).any(|(at, found)| {
            let rest = &text[at + found.len()..];
            let rest = rest.strip_prefix("List").unwrap_or(rest);
            !rest.starts_with(|character: char| character.is_ascii_alphanumeric())
        })
}

/// Redacts one top-level field of an object; `None` if nothing changes.
pub(super) fn redact_field(
    class: RedactionClass,
    name: &str,
    value: &RawValue,
    options: &IngestOptions,
) -> Result<Option<String>, serde_json::Error> {
    match (class, name) {
        (RedactionClass::None, _) | (_, "apiVersion" | "kind" | "metadata") => Ok(None),
        (RedactionClass::Secret, "data" | "stringData") => blank_values(value.get()).map(Some),
        (RedactionClass::Secret, _) => Ok(None),
        (RedactionClass::Work, "spec") => {
            let spec = redact_work(value.get(), options)?;
            let secrets = if options.secret_values { None } else { redact_embedded(&spec, false, MAX_DEPTH)? };
            Ok(Some(secrets.unwrap_or(spec)))
        }
        (RedactionClass::Work | RedactionClass::MayEmbed, _) if options.secret_values => Ok(None),
        (RedactionClass::Work | RedactionClass::MayEmbed, _) => redact_embedded(value.get(), false, MAX_DEPTH),
    }
}

/// Returns the predicate for annotations that are kept in a Secret with these fields: those without a copy of its values.
pub(super) fn annotation_filter<'f>(fields: &'f Fields<'f>) -> impl Fn(&str, &RawValue) -> bool + 'f {
    let longest = longest_annotation(fields).unwrap_or_default();
    let values_in = |field: &'static str| {
        let all: Fields<'_> = fields.get(field).and_then(parse_fields).unwrap_or_default();
        let candidates = all.iter().filter(|(_, raw)| raw.get().len() <= longest.saturating_mul(2));
        let values =
            candidates.filter_map(|(_, raw)| parse_text(raw)).flat_map(|value| secret_values(field, &value, longest));
        values.collect::<Vec<_>>()
    };
    let values = [values_in("data"), values_in("stringData")].concat();
    move |key, value| parse_text(value).is_some_and(|value| is_harmless(key, &value, &values))
}

/// Length of the longest annotation. Longer values cannot occur in one.
fn longest_annotation(fields: &Fields<'_>) -> Option<usize> {
    let metadata: Fields<'_> = parse_fields(fields.get("metadata")?)?;
    let annotations: Fields<'_> = parse_fields(metadata.get("annotations")?)?;
    annotations.iter().map(|(_, value)| value.get().len()).max()
}

fn parse_fields(raw: &RawValue) -> Option<Fields<'_>> {
    serde_json::from_str(raw.get()).ok()
}

fn parse_text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// True if an annotation may be kept when the object's withheld values are unknown.
pub(super) fn is_kept_in_redacted_object(key: &str, value: &RawValue) -> bool {
    parse_text(value).is_some_and(|value| is_harmless(key, &value, &[]))
}

/// True if an annotation of an object without withheld values may be kept.
pub(super) fn is_kept_in_other_object(_: &str, value: &RawValue) -> bool {
    // Decodes the value only if it may contain a Secret.
    !value.get().contains(SECRET) || parse_text(value).is_some_and(|value| !contains_secret(&value))
}

/// Removes the values that `withheld` paths select from the manifests of a Work.
fn redact_work(spec: &str, options: &IngestOptions) -> Result<String, serde_json::Error> {
    map_field(spec, "workload", &|workload| {
        map_field(workload, "manifests", &|manifests| {
            let items: Vec<&RawValue> = serde_json::from_str(manifests)?;
            let items: Result<Vec<String>, _> =
                items.into_iter().map(|item| redact_manifest(item.get(), options)).collect();
            Ok(format!("[{}]", items?.join(",")))
        })
    })
}

fn redact_manifest(raw: &str, options: &IngestOptions) -> Result<String, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(raw)?;
    let (kind, api_version) = (fields.text("kind"), fields.text("apiVersion"));
    let (kind, api_version) = (kind.as_deref().unwrap_or_default(), api_version.as_deref().unwrap_or_default());
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let withheld: Vec<&WithheldPath> =
        options.withheld.iter().filter(|path| path.applies_to_kind(group, kind)).collect();
    if withheld.is_empty() {
        return Ok(raw.to_owned());
    }
    let mut text = String::new();
    let mut out = ObjectWriter::new(&mut text);
    for (name, value) in fields.iter() {
        match name {
            "metadata" => {
                let metadata_fields = serde_json::from_str(value.get())?;
                copy_metadata(&metadata_fields, false, Some(&is_kept_in_redacted_object), out.begin_field(name))?;
            }
            _ => out.push(name, &redact_paths(&withheld, name, value.get().to_owned())?),
        }
    }
    out.finish();
    Ok(text)
}

/// Blanks the values of all Secrets in a value and removes annotations with copies of them; `None` if nothing changes.
/// `is_secret_item` is true for the items of a SecretList, which are Secrets without a `kind`.
fn redact_embedded(raw: &str, is_secret_item: bool, max_depth: usize) -> Result<Option<String>, serde_json::Error> {
    if !is_secret_item && !raw.contains(SECRET) {
        return Ok(None);
    }
    let remaining_depth = match (max_depth.checked_sub(1), raw.as_bytes().first()) {
        (_, Some(b'"')) => return Ok(None),
        (None, Some(b'{' | b'[')) => return Ok(Some("null".to_owned())),
        (remaining_depth, _) => remaining_depth.unwrap_or_default(),
    };
    match raw.as_bytes().first() {
        Some(b'{') => {
            let fields: Fields<'_> = serde_json::from_str(raw)?;
            redact_object(&fields, is_secret_item || is_secret(&fields), remaining_depth)
        }
        Some(b'[') => redact_list(raw, is_secret_item, remaining_depth),
        _ => Ok(None),
    }
}

fn redact_list(raw: &str, is_secret_item: bool, remaining_depth: usize) -> Result<Option<String>, serde_json::Error> {
    let items: Vec<&RawValue> = serde_json::from_str(raw)?;
    let mut changed = false;
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        let text = redact_embedded(item.get(), is_secret_item, remaining_depth)?;
        changed |= text.is_some();
        texts.push(text.unwrap_or_else(|| item.get().to_owned()));
    }
    Ok(changed.then(|| format!("[{}]", texts.join(","))))
}

fn redact_object(
    fields: &Fields<'_>,
    is_secret: bool,
    remaining_depth: usize,
) -> Result<Option<String>, serde_json::Error> {
    let is_secret_list = fields.text("kind").is_some_and(|kind| &*kind == "SecretList");
    let mut changed = false;
    let mut text = String::new();
    let mut out = ObjectWriter::new(&mut text);
    for (name, value) in fields.iter() {
        let new = match name {
            "data" | "stringData" if is_secret => Some(blank_values(value.get())?),
            "metadata" if is_secret => Some(redact_secret_metadata(fields, value)?),
            "annotations" => remove_copies(value.get())?,
            _ => redact_embedded(value.get(), is_secret_list && name == "items", remaining_depth)?,
        };
        let new = new.as_deref().unwrap_or(value.get());
        changed |= new != value.get();
        out.push(name, new);
    }
    out.finish();
    Ok(changed.then_some(text))
}

fn redact_secret_metadata(fields: &Fields<'_>, value: &RawValue) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    match serde_json::from_str::<Fields<'_>>(value.get()) {
        Ok(metadata_fields) => {
            copy_metadata(&metadata_fields, false, Some(&annotation_filter(fields)), &mut text)?;
        }
        // Invalid metadata is dropped.
        Err(_) => text.push_str("null"),
    }
    Ok(text)
}

/// Annotations without copies of Secrets; `None` if there is no such copy.
fn remove_copies(raw: &str) -> Result<Option<String>, serde_json::Error> {
    if !raw.starts_with('{') || !raw.contains(SECRET) {
        return Ok(None);
    }
    let mut text = String::new();
    let is_removed = copy_annotations(raw, &is_kept_in_other_object, &mut text)?;
    Ok(is_removed.then_some(text))
}

/// True for a Secret. Also true for a reference to a Secret, in which there are no values to remove.
fn is_secret(fields: &Fields<'_>) -> bool {
    let has_text = |name: &str, expected: &str| fields.text(name).is_some_and(|text| &*text == expected);
    has_text("kind", SECRET) && (fields.get("apiVersion").is_none() || has_text("apiVersion", "v1"))
}

/// Applies `change` to one field of an object; the other fields stay unchanged.
fn map_field(
    raw: &str,
    field: &str,
    change: &dyn Fn(&str) -> Result<String, serde_json::Error>,
) -> Result<String, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(raw)?;
    let mut text = String::with_capacity(raw.len());
    let mut out = ObjectWriter::new(&mut text);
    for (name, value) in fields.iter() {
        if name == field { out.push(name, &change(value.get())?) } else { out.push(name, value.get()) }
    }
    out.finish();
    Ok(text)
}

/// Replaces every value of an object with an empty string. Anything but an object becomes `null`.
fn blank_values(raw: &str) -> Result<String, serde_json::Error> {
    if !raw.starts_with('{') {
        return Ok("null".to_owned());
    }
    let fields: Fields<'_> = serde_json::from_str(raw)?;
    let mut text = String::new();
    let mut out = ObjectWriter::new(&mut text);
    fields.iter().for_each(|(name, _)| out.push(name, "\"\""));
    out.finish();
    Ok(text)
}
