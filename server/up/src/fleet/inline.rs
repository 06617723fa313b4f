//! Parser of the inline form of `--members`: `3`, `east,west`, `east:nodes=2,cpu=8;west:nodes=4`.
//!
//! Groups are separated by `;`. A group is a number of members or a list of names separated by `,`. A `:` and settings
//! of the form `KEY=VALUE`, separated by `,`, may follow; they apply to each member of the group.

use serde_json::Value;

use super::MAX_MEMBERS;
use super::settings::{MemberSettings, NodeSettings, TaintSettings};
use super::shape::MAX_NODES;

/// Names of the settings, for error messages.
const KEYS: &str = "nodes, region, zones, provider, version, cpu, memory, ephemeral-storage, pods, instance-type, label, taint or an \
     extended resource such as nvidia.com/gpu";

/// Parses the settings of each member; the boolean is true if the text states settings for the member.
pub(super) fn parse(text: &str) -> Result<Vec<(MemberSettings, bool)>, String> {
    let mut members = Vec::new();
    for group in text.split(';') {
        let (names, settings) = match group.split_once(':') {
            Some((names, settings)) => (names, Some(settings)),
            None if group.contains('=') => {
                return Err(format!("{:?} names no member; expected MEMBER:KEY=VALUE", group.trim()));
            }
            None => (group, None),
        };
        let settings = settings.map(|text| parse_settings(names.trim(), text)).transpose()?;
        let has_settings = settings.is_some();
        let settings = settings.unwrap_or_default();
        let member = |name: String| (MemberSettings { name, ..settings.clone() }, has_settings);
        match names.trim().parse::<usize>() {
            Ok(count) => members.extend((1..=count.min(MAX_MEMBERS + 1)).map(|n| member(format!("member{n}")))),
            Err(_) => members.extend(names.split(',').map(|name| member(name.trim().to_owned()))),
        }
    }
    Ok(members)
}

/// Parses the settings of a group; `names` is the group's text before the `:`, for errors.
fn parse_settings(names: &str, text: &str) -> Result<MemberSettings, String> {
    let mut member = MemberSettings::default();
    let mut nodes = NodeSettings::default();
    for setting in text.split(',').map(str::trim) {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| format!("{names}: {setting:?} is not a setting; expected KEY=VALUE with {KEYS}"))?;
        let owned_value = value.to_owned();
        let invalid = |expected: &str| format!("{names}: {key}={value}: expected {expected}");
        match key {
            "nodes" => {
                nodes.count = Some(value.parse().map_err(|_| invalid(&format!("a number from 0 to {MAX_NODES}")))?)
            }
            "zone" | "zones" => nodes.zones = value.split('+').map(str::to_owned).collect(),
            "region" => member.region = Some(owned_value),
            "provider" => member.provider = Some(owned_value),
            "version" => member.kubernetes_version = Some(owned_value),
            "instance-type" => nodes.instance_type = Some(owned_value),
            "label" => {
                let (key, value) = value.split_once('=').ok_or_else(|| invalid("label=KEY=VALUE"))?;
                nodes.labels.insert(key.to_owned(), value.to_owned());
            }
            "taint" => nodes.taints.push(parse_taint(value).ok_or_else(|| invalid("taint=KEY[=VALUE]:EFFECT"))?),
            "cpu" | "memory" | "ephemeral-storage" | "pods" => {
                nodes.allocatable.insert(key.to_owned(), Value::String(owned_value));
            }
            resource if resource.contains('/') => {
                nodes.allocatable.insert(resource.to_owned(), Value::String(owned_value));
            }
            _ => return Err(format!("{names}: unknown setting {key:?}; expected {KEYS}")),
        }
    }
    member.zones = std::mem::take(&mut nodes.zones);
    member.nodes = Some(vec![nodes]);
    Ok(member)
}

fn parse_taint(text: &str) -> Option<TaintSettings> {
    let (key, effect) = text.split_once(':')?;
    let (key, value) = key.split_once('=').unwrap_or((key, ""));
    Some(TaintSettings { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() })
}
