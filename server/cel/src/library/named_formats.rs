//! Named formats, `format.dns1123Label()` and `format.named('uuid')`, and their validation.

use std::sync::Arc;

use crowsnest_apimachinery::names::format::{
    validate_dns1035_label, validate_dns1123_label, validate_dns1123_subdomain, validate_label_value,
    validate_qualified_name,
};
use crowsnest_schema::formats::matches_format;
use kube::core::cel::cel::extractors::This;
use kube::core::cel::cel::objects::{Opaque, OptionalValue};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

use super::{Outcome, url};

/// A named format; formats with the same name are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Format(&'static str);

impl Opaque for Format {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.NamedFormat"
    }
}

const NAMES: &[&str] = &[
    "byte",
    "date",
    "datetime",
    "dns1035Label",
    "dns1035LabelPrefix",
    "dns1123Label",
    "dns1123LabelPrefix",
    "dns1123Subdomain",
    "dns1123SubdomainPrefix",
    "labelValue",
    "qualifiedName",
    "uri",
    "uuid",
];

pub(super) fn register(context: &mut Context<'_>) {
    for name in NAMES {
        context.add_function(&format!("format.{name}"), move || -> Outcome { Ok(Cel::Opaque(Arc::new(Format(name)))) });
    }
    context.add_function("format.named", |name: Arc<String>| -> Outcome {
        let known = NAMES.iter().find(|known| **known == *name);
        Ok(optional(known.map(|name| Cel::Opaque(Arc::new(Format(name))))))
    });
    context.add_function("validate", |This(this): This<Cel>, text: Arc<String>| -> Outcome {
        let Cel::Opaque(format) = &this else { return Err(ExecutionError::NoSuchOverload) };
        let Format(name) = format.downcast_ref::<Format>().ok_or(ExecutionError::NoSuchOverload)?;
        let errors = validate(name, &text);
        Ok(optional((!errors.is_empty()).then(|| Cel::from(errors))))
    });
}

fn optional(value: Option<Cel>) -> Cel {
    Cel::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
}

/// Validates a text by a format.
fn validate(format: &str, text: &str) -> Vec<String> {
    let error_unless = |is_valid: bool, reason: &str| if is_valid { Vec::new() } else { vec![reason.to_owned()] };
    match format {
        "dns1123Label" => validate_dns1123_label(text),
        "dns1123LabelPrefix" => validate_dns1123_label(&complete_prefix(text)),
        "dns1123Subdomain" => validate_dns1123_subdomain(text),
        "dns1123SubdomainPrefix" => validate_dns1123_subdomain(&complete_prefix(text)),
        "dns1035Label" => validate_dns1035_label(text),
        "dns1035LabelPrefix" => validate_dns1035_label(&complete_prefix(text)),
        "labelValue" => validate_label_value(text),
        "qualifiedName" => validate_qualified_name(text),
        "uri" => url::parse_request_uri(text).err().into_iter().collect(),
        "uuid" => error_unless(matches_format("uuid", text), "does not match the UUID format"),
        "byte" => error_unless(matches_format("byte", text), "invalid base64"),
        "date" => error_unless(matches_format("date", text), "invalid date"),
        _ => error_unless(matches_format("datetime", text), "invalid datetime"),
    }
}

/// Turns the prefix of a generated name into a name that can be validated: `a` replaces a trailing dash and the character
/// before it, as in Kubernetes' `maskTrailingDash`.
fn complete_prefix(text: &str) -> String {
    match text.strip_suffix('-').filter(|rest| !rest.is_empty()) {
        Some(rest) => {
            let mut rest_chars = rest.chars();
            rest_chars.next_back();
            format!("{}a", rest_chars.as_str())
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("dns1123LabelPrefix", "a-", &[])]
    #[case("dns1123SubdomainPrefix", "a.b.-", &[])]
    #[case("dns1123Label", "a.b", &["must not contain dots"])]
    #[case("qualifiedName", "/b", &["prefix part must be non-empty"])]
    #[case("uri", "example.com", &["parse \"example.com\": invalid URI for request"])]
    #[case("uuid", "123e4567e89b12d3a456426614174000", &[])]
    #[case("uuid", "x", &["does not match the UUID format"])]
    #[case("byte", "", &["invalid base64"])]
    #[case("byte", "YR==", &[])]
    #[case("date", "2024-02-29", &[])]
    #[case("date", "2021-02-30", &["invalid date"])]
    #[case("datetime", "2021-01-01t00:00:00z", &[])]
    #[case("datetime", "2021-01-01T00:00:60Z", &["invalid datetime"])]
    fn named_formats_validate_strings(#[case] format: &str, #[case] text: &str, #[case] expected: &[&str]) {
        assert_eq!(validate(format, text), expected);
    }
}
