//! `jsonpath` templates of `-o`, in which a bare path needs no braces. Has no side effects.

use crowsnest_apimachinery::jsonpath::Template;

/// Parses the template of `-o jsonpath=`.
pub(super) fn parse_template(text: &str) -> Result<Template, String> {
    let braced = if text.contains('{') { text.to_owned() } else { format!("{{{text}}}") };
    Template::parse(&braced).map_err(|error| format!("error parsing jsonpath {text}, {error}"))
}
