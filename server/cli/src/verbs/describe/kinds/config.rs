//! Describes ConfigMaps, Secrets (only the length of values is shown), ServiceAccounts and Namespaces. Pure.

use serde_json::Value;

use super::{CONDITIONS, LIMITS, QUOTAS, Related, SECRETS, conditions, unknown};
use crate::verbs::describe::render::marks;
use crate::verbs::describe::sheet::{NONE, Sheet, list, or_none, plain, sorted};

pub(super) fn config_map(sheet: &mut Sheet, map: &Value) {
    marks(sheet, map);
    block(sheet, "Data");
    for (key, value) in sorted(&map["data"]) {
        sheet.line(0, format!("{key}:"));
        sheet.line(0, "----");
        sheet.line(0, plain(value));
        sheet.line(0, "");
    }
    block(sheet, "BinaryData");
    for (key, value) in sorted(&map["binaryData"]) {
        sheet.line(0, format!("{key}: {} bytes", bytes(value)));
    }
    sheet.line(0, "");
}

pub(super) fn secret(sheet: &mut Sheet, secret: &Value) {
    marks(sheet, secret);
    sheet.line(0, "");
    sheet.say(0, "Type", or_none(&secret["type"]));
    block(sheet, "Data");
    for (key, value) in sorted(&secret["data"]) {
        sheet.say(0, key, format!("{} bytes", bytes(value)));
    }
}

fn block(sheet: &mut Sheet, head: &str) {
    sheet.line(0, "");
    sheet.line(0, head);
    sheet.line(0, "====");
}

/// Length of a base64 value after decoding, in bytes.
fn bytes(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

pub(super) fn account(sheet: &mut Sheet, account: &Value, related: &Related) {
    marks(sheet, account);
    let names = |field: &str| list(&account[field]).iter().map(|one| plain(&one["name"])).collect::<Vec<_>>();
    sheet.list(0, "Image pull secrets", &names("imagePullSecrets"));
    sheet.list(0, "Mountable secrets", &names("secrets"));
    match related.get(SECRETS) {
        Some(Ok(secrets)) => {
            let own = |secret: &&Value| {
                secret["metadata"]["annotations"]["kubernetes.io/service-account.name"] == account["metadata"]["name"]
            };
            let tokens: Vec<String> =
                secrets.iter().filter(own).map(|secret| plain(&secret["metadata"]["name"])).collect();
            sheet.list(0, "Tokens", &tokens);
        }
        Some(Err(why)) => sheet.say(0, "Tokens", unknown(why)),
        None => sheet.say(0, "Tokens", NONE),
    }
}

pub(super) fn namespace(sheet: &mut Sheet, namespace: &Value, related: &Related) {
    marks(sheet, namespace);
    sheet.say(0, "Status", or_none(&namespace["status"]["phase"]));
    conditions(sheet, namespace, &CONDITIONS);
    add_related(sheet, related, QUOTAS, "Resource Quotas", |sheet, quotas| {
        quotas.iter().for_each(|one| quota(sheet, one))
    });
    add_related(sheet, related, LIMITS, "Resource Limits", |sheet, limits| {
        let rows: Vec<Vec<String>> =
            limits.iter().flat_map(|one| list(&one["spec"]["limits"])).flat_map(limit).collect();
        let heads = ["Type", "Resource", "Min", "Max", "Default Request", "Default Limit", "Max Limit/Request Ratio"];
        sheet.table(2, &heads, &rows);
    });
}

fn add_related(sheet: &mut Sheet, related: &Related, what: &str, label: &str, render: impl Fn(&mut Sheet, &[Value])) {
    sheet.line(0, "");
    match related.get(what) {
        Some(Ok(all)) if !all.is_empty() => {
            sheet.head(0, label);
            render(sheet, all);
        }
        Some(Err(why)) => sheet.say(0, label, unknown(why)),
        _ => sheet.line(0, format!("No {}.", label.to_lowercase())),
    }
}

fn quota(sheet: &mut Sheet, quota: &Value) {
    sheet.say(2, "Name", plain(&quota["metadata"]["name"]));
    let (hard, used) = (&quota["status"]["hard"], &quota["status"]["used"]);
    let rows: Vec<Vec<String>> =
        sorted(hard).into_iter().map(|(name, most)| vec![name.clone(), or_zero(&used[name]), plain(most)]).collect();
    sheet.table(2, &["Resource", "Used", "Hard"], &rows);
}

fn or_zero(value: &Value) -> String {
    if value.is_null() { "0".to_owned() } else { plain(value) }
}

fn limit(limit: &Value) -> Vec<Vec<String>> {
    let fields = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];
    let mut names: Vec<&String> =
        fields.iter().flat_map(|field| sorted(&limit[*field])).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let amount = |field: &str, name: &str| limit[field][name].as_str().unwrap_or("-").to_owned();
    let row = |name: &String| {
        let own = [plain(&limit["type"]), name.clone()];
        own.into_iter().chain(fields.iter().map(|field| amount(field, name))).collect()
    };
    names.into_iter().map(row).collect()
}
