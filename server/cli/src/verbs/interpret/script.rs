//! The editor format of a customization: its scripts, separated by marker lines.

use crowsnest_api::config::{ResourceInterpreterCustomization, ResourceInterpreterCustomizationSpec};

use super::rules::{RULES, Rule};

const COMMENT: &str = "--";
const MARK: &str = "---@";
const NAME: &str = "---@name:";
const API_VERSION: &str = "---@apiVersion:";
const KIND: &str = "---@kind:";
const RULE: &str = "---@rule:";

/// The editable part of a customization.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct EditableCustomization {
    pub(super) name: String,
    pub(super) spec: ResourceInterpreterCustomizationSpec,
}

/// A line outside of any script.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected line {0:?}")]
pub(super) struct UnexpectedLine(String);

impl EditableCustomization {
    pub(super) fn from_customization(customization: &ResourceInterpreterCustomization) -> Self {
        let name = customization.metadata.name.clone().unwrap_or_default();
        Self { name, spec: customization.spec.clone() }
    }

    pub(super) fn render(&self, docs: bool) -> String {
        let target = &self.spec.target;
        let mut text = format!("{NAME} {}\n{API_VERSION} {}\n{KIND} {}\n", self.name, target.api_version, target.kind);
        for rule in &RULES {
            text.push_str(&format!("{RULE} {}\n", rule.name()));
            if docs {
                text.push_str(&comment_out(rule.doc));
            }
            let script = rule.script(&self.spec.customizations).unwrap_or_default();
            text.push_str(script);
            if !script.is_empty() && !script.ends_with('\n') {
                text.push('\n');
            }
        }
        text
    }

    /// Parses the edited text. Unchanged scripts keep their exact text.
    pub(super) fn parse(&self, text: &str) -> Result<Self, UnexpectedLine> {
        let mut parsed = Self { name: self.name.clone(), spec: ResourceInterpreterCustomizationSpec::default() };
        let mut current: Option<(&Rule, String)> = None;
        for line in text.lines() {
            let trimmed = line.trim();
            let value_of = |mark: &str| trimmed.strip_prefix(mark).map(|value| value.trim().to_owned());
            if let Some(name) = value_of(NAME) {
                parsed.name = name;
            } else if let Some(api_version) = value_of(API_VERSION) {
                parsed.spec.target.api_version = api_version;
            } else if let Some(kind) = value_of(KIND) {
                parsed.spec.target.kind = kind;
            } else if let Some(name) = value_of(RULE) {
                if let Some(rule) = RULES.iter().find(|rule| rule.name() == name) {
                    self.finish_script(current.replace((rule, String::new())), &mut parsed);
                }
            } else if !trimmed.starts_with(COMMENT) {
                match &mut current {
                    Some((_, script)) => *script += &format!("{line}\n"),
                    None if trimmed.is_empty() => {}
                    None => return Err(UnexpectedLine(line.to_owned())),
                }
            }
        }
        self.finish_script(current, &mut parsed);
        Ok(parsed)
    }

    /// Sets a parsed script in `parsed`.
    fn finish_script(&self, script: Option<(&Rule, String)>, parsed: &mut Self) {
        let Some((rule, script)) = script else { return };
        let old = rule.script(&self.spec.customizations).unwrap_or_default();
        // `parse` drops comment lines, so they do not count as a change.
        let is_unchanged = without_comments(old).trim_end() == script.trim_end();
        let script = if is_unchanged { old.to_owned() } else { script };
        let script = if script.trim().is_empty() { String::new() } else { script };
        rule.set_script(&mut parsed.spec.customizations, script);
    }
}

/// Prefixes each line with the comment marker.
pub(super) fn comment_out(text: &str) -> String {
    text.lines().map(|line| format!("{COMMENT} {line}").trim_end().to_owned() + "\n").collect()
}

/// Removes comment lines except markers.
pub(super) fn without_comments(text: &str) -> String {
    let is_comment = |line: &&str| line.trim().starts_with(COMMENT) && !line.trim().starts_with(MARK);
    text.lines().filter(|line| !is_comment(line)).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn editable() -> EditableCustomization {
        let customization = json!({"metadata": {"name": "c"}, "spec": {
            "target": {"apiVersion": "apps/v1", "kind": "Deployment"},
            "customizations": {
                "retention": {"luaScript": "function Retain(d, o)\n  -- as it is\n  return d\nend"},
                "healthInterpretation": {"luaScript": "function InterpretHealth()\n  return true\nend\n"},
            },
        }});
        EditableCustomization::from_customization(&serde_json::from_value(customization).unwrap())
    }

    #[rstest]
    #[case(false)]
    #[case(true)]
    fn unchanged_scripts_are_kept(#[case] docs: bool) {
        let editable = editable();
        let text = editable.render(docs);
        assert_eq!(editable.parse(&text), Ok(editable.clone()), "{text}");
        assert_eq!(editable.parse(&without_comments(&text)), Ok(editable));
        assert_eq!(text.contains("-- Returns true if a member's object is healthy.\n"), docs);
    }

    #[test]
    fn text_contains_target_and_rules() {
        let text = editable().render(false);
        let head =
            "---@name: c\n---@apiVersion: apps/v1\n---@kind: Deployment\n---@rule: Retain\nfunction Retain(d, o)\n";
        assert!(text.starts_with(head), "{text}");
        assert_eq!(text.matches("---@rule: ").count(), 8);
    }

    #[test]
    fn edited_scripts_are_applied() {
        let text = editable().render(false).replace("return true", "return false");
        let text = text.replace("function Retain(d, o)\n  -- as it is\n  return d\nend\n", "");
        let text = text
            .replace("---@rule: ReviseReplica\n", "---@rule: ReviseReplica\nfunction ReviseReplica(o) return o end\n");
        let customizations = editable().parse(&text).unwrap().spec.customizations;
        let scripts = json!(customizations);
        assert_eq!(
            scripts,
            json!({
                "replicaRevision": {"luaScript": "function ReviseReplica(o) return o end\n"},
                "healthInterpretation": {"luaScript": "function InterpretHealth()\n  return false\nend\n"},
            })
        );
    }

    #[test]
    fn lines_before_the_first_rule_are_rejected() {
        assert_eq!(editable().parse("---@name: c\nreturn 1\n"), Err(UnexpectedLine("return 1".to_owned())));
    }
}
