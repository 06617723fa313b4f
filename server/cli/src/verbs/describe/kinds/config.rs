//! Describes ConfigMaps, Secrets (only the length of values is shown), ServiceAccounts and Namespaces. Has no side effects.

use serde_json::Value;

use super::{CONDITIONS, LIMITS, QUOTAS, RelatedObjects, SECRETS, add_conditions, format_unknown};
use crate::verbs::describe::render::add_labels_and_annotations;
use crate::verbs::describe::sheet::{NONE, Sheet, list, or_none, sorted_fields, to_text};

pub(super) fn describe_config_map(sheet: &mut Sheet, map: &Value) {
    add_labels_and_annotations(sheet, map);
    add_block(sheet, "Data");
    for (key, value) in sorted_fields(&map["data"]) {
        sheet.add_line(0, format!("{key}:"));
        sheet.add_line(0, "----");
        sheet.add_line(0, to_text(value));
        sheet.add_line(0, "");
    }
    add_block(sheet, "BinaryData");
    for (key, value) in sorted_fields(&map["binaryData"]) {
        sheet.add_line(0, format!("{key}: {} bytes", decoded_length(value)));
    }
    sheet.add_line(0, "");
}

pub(super) fn describe_secret(sheet: &mut Sheet, secret: &Value) {
    add_labels_and_annotations(sheet, secret);
    sheet.add_line(0, "");
    sheet.add_field(0, "Type", or_none(&secret["type"]));
    add_block(sheet, "Data");
    for (key, value) in sorted_fields(&secret["data"]) {
        sheet.add_field(0, key, format!("{} bytes", decoded_length(value)));
    }
}

fn add_block(sheet: &mut Sheet, heading: &str) {
    sheet.add_line(0, "");
    sheet.add_line(0, heading);
    sheet.add_line(0, "====");
}

/// Length of a base64 value after decoding, in bytes.
fn decoded_length(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

pub(super) fn describe_service_account(sheet: &mut Sheet, account: &Value, related: &RelatedObjects) {
    add_labels_and_annotations(sheet, account);
    let names =
        |field: &str| list(&account[field]).iter().map(|reference| to_text(&reference["name"])).collect::<Vec<_>>();
    sheet.add_list(0, "Image pull secrets", &names("imagePullSecrets"));
    sheet.add_list(0, "Mountable secrets", &names("secrets"));
    match related.get(SECRETS) {
        Some(Ok(secrets)) => {
            let is_token_of_account = |secret: &&Value| {
                secret["metadata"]["annotations"]["kubernetes.io/service-account.name"] == account["metadata"]["name"]
            };
            let tokens: Vec<String> =
                secrets.iter().filter(is_token_of_account).map(|secret| to_text(&secret["metadata"]["name"])).collect();
            sheet.add_list(0, "Tokens", &tokens);
        }
        Some(Err(reason)) => sheet.add_field(0, "Tokens", format_unknown(reason)),
        None => sheet.add_field(0, "Tokens", NONE),
    }
}

pub(super) fn describe_namespace(sheet: &mut Sheet, namespace: &Value, related: &RelatedObjects) {
    add_labels_and_annotations(sheet, namespace);
    sheet.add_field(0, "Status", or_none(&namespace["status"]["phase"]));
    add_conditions(sheet, namespace, &CONDITIONS);
    add_related(sheet, related, QUOTAS, "Resource Quotas", |sheet, quotas| {
        quotas.iter().for_each(|quota| add_quota(sheet, quota))
    });
    add_related(sheet, related, LIMITS, "Resource Limits", |sheet, limits| {
        let rows: Vec<Vec<String>> =
            limits.iter().flat_map(|limit| list(&limit["spec"]["limits"])).flat_map(limit_rows).collect();
        let headers = ["Type", "Resource", "Min", "Max", "Default Request", "Default Limit", "Max Limit/Request Ratio"];
        sheet.add_table(2, &headers, &rows);
    });
}

fn add_related(
    sheet: &mut Sheet,
    related: &RelatedObjects,
    resource: &str,
    label: &str,
    render: impl Fn(&mut Sheet, &[Value]),
) {
    sheet.add_line(0, "");
    match related.get(resource) {
        Some(Ok(objects)) if !objects.is_empty() => {
            sheet.add_heading(0, label);
            render(sheet, objects);
        }
        Some(Err(reason)) => sheet.add_field(0, label, format_unknown(reason)),
        _ => sheet.add_line(0, format!("No {}.", label.to_lowercase())),
    }
}

fn add_quota(sheet: &mut Sheet, quota: &Value) {
    sheet.add_field(2, "Name", to_text(&quota["metadata"]["name"]));
    let (hard, used) = (&quota["status"]["hard"], &quota["status"]["used"]);
    let rows: Vec<Vec<String>> = sorted_fields(hard)
        .into_iter()
        .map(|(name, limit)| vec![name.clone(), or_zero(&used[name]), to_text(limit)])
        .collect();
    sheet.add_table(2, &["Resource", "Used", "Hard"], &rows);
}

fn or_zero(value: &Value) -> String {
    if value.is_null() { "0".to_owned() } else { to_text(value) }
}

/// One row per resource of a limit.
fn limit_rows(limit: &Value) -> Vec<Vec<String>> {
    let fields = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];
    let mut names: Vec<&String> =
        fields.iter().flat_map(|field| sorted_fields(&limit[*field])).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let amount = |field: &str, name: &str| limit[field][name].as_str().unwrap_or("-").to_owned();
    let row = |name: &String| {
        let first_cells = [to_text(&limit["type"]), name.clone()];
        first_cells.into_iter().chain(fields.iter().map(|field| amount(field, name))).collect()
    };
    names.into_iter().map(row).collect()
}
