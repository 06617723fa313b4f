//! The file of `--members`: YAML (or JSON) with a list `members`.

use serde::Deserialize;
use serde_json::Value;

use super::settings::MemberSettings;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetFile {
    members: Vec<MemberSettings>,
}

/// Reads a file's text. Errors name the path of the field.
pub(super) fn parse(text: &str) -> Result<Vec<MemberSettings>, String> {
    let value: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    if !value.is_object() {
        return Err("the file must be an object with the list `members`".to_owned());
    }
    let file: FleetFile = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        // A dot is the path of the file as a whole.
        if path == "." { error.inner().to_string() } else { format!("{path}: {}", error.inner()) }
    })?;
    Ok(file.members)
}
