//! What differs between two versions of a field that may not change, told below the refusal.
//!
//! kube-apiserver puts the text of `cmp.Diff` there, which go-cmp changes on purpose from one build to the next. This one has its
//! layout: Go's names of fields, `-` for what was, `+` for what is asked for; what is alike is left out.

use std::collections::BTreeSet;

use serde_json::Value;

/// `type_name` is that of the Go type: `core.PodSpec`.
pub(super) fn difference(type_name: &str, old: &Value, new: &Value) -> String {
    let mut out = String::new();
    compare(&mut out, type_name, old, new, 0);
    out
}

fn line(out: &mut String, sign: char, depth: usize, text: &str) {
    out.push(sign);
    out.push(' ');
    out.extend(std::iter::repeat_n('\t', depth));
    out.push_str(text);
    out.push('\n');
}

fn compare(out: &mut String, head: &str, old: &Value, new: &Value, depth: usize) {
    let end = if depth == 0 { "}" } else { "}," };
    let open = |head: &str| if depth == 0 || head.is_empty() { format!("{head}{{") } else { format!("{head}: {{") };
    match (old, new) {
        (Value::Object(before), Value::Object(after)) => {
            line(out, ' ', depth, &open(head));
            let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            let alike = names.iter().filter(|name| before.get(**name) == after.get(**name)).count();
            for name in names.into_iter().filter(|name| before.get(*name) != after.get(*name)) {
                let side = |fields: &serde_json::Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                compare(out, &go_name(name), &side(before), &side(after), depth + 1);
            }
            more(out, alike, "fields", depth + 1);
            line(out, ' ', depth, end);
        }
        (Value::Array(before), Value::Array(after)) => {
            line(out, ' ', depth, &open(head));
            let (longer, nothing) = (before.len().max(after.len()), Value::Null);
            let mut alike = 0;
            for index in 0..longer {
                let side = |items: &'_ [Value]| items.get(index).cloned().unwrap_or_else(|| nothing.clone());
                match (side(before), side(after)) {
                    (old, new) if old == new => alike += 1,
                    (old, new) => compare(out, "", &old, &new, depth + 1),
                }
            }
            more(out, alike, "elements", depth + 1);
            line(out, ' ', depth, end);
        }
        _ => {
            let named = |value: &Value| if head.is_empty() { text(value) } else { format!("{head}: {}", text(value)) };
            if !(head.is_empty() && old.is_null()) {
                line(out, '-', depth, &format!("{},", named(old)));
            }
            if !(head.is_empty() && new.is_null()) {
                line(out, '+', depth, &format!("{},", named(new)));
            }
        }
    }
}

fn more(out: &mut String, alike: usize, what: &str, depth: usize) {
    if alike > 0 {
        line(out, ' ', depth, &format!("... // {alike} identical {what}"));
    }
}

fn text(value: &Value) -> String {
    if value.is_null() { "nil".to_owned() } else { value.to_string() }
}

/// How Go calls a field that JSON calls like this.
fn go_name(name: &str) -> String {
    for (short, whole) in
        [("dns", "DNS"), ("os", "OS"), ("tty", "TTY"), ("uid", "UID"), ("gcePersistent", "GCEPersistent")]
    {
        if let Some(rest) = name.strip_prefix(short)
            && rest.chars().next().is_none_or(char::is_uppercase)
        {
            return format!("{whole}{rest}");
        }
    }
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_differs_is_told() {
        let old = json!({"containers": [{"name": "c", "command": null}, {"name": "d"}], "dnsPolicy": "Default", "nodeName": "n"});
        let new = json!({"containers": [{"name": "c", "command": ["x"]}, {"name": "d"}], "dnsPolicy": "None", "nodeName": "n"});
        let wanted = "  core.PodSpec{
  \tContainers: {
  \t\t{
- \t\t\tCommand: nil,
+ \t\t\tCommand: [\"x\"],
  \t\t\t... // 1 identical fields
  \t\t},
  \t\t... // 1 identical elements
  \t},
- \tDNSPolicy: \"Default\",
+ \tDNSPolicy: \"None\",
  \t... // 1 identical fields
  }
";
        assert_eq!(difference("core.PodSpec", &old, &new), wanted);
    }
}
