//! `crowsnest can`: lists what a user, group or service account may do in each cluster, from SubjectRulesReviews of
//! `access.crowsnest.io`.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crowsnest_apimachinery::unstructured::{list, text};
use crowsnest_apimachinery::user::service_account_user;
use serde_json::{Value, json};

use crate::reviews::{self, Output, ReviewArgs, format_reference, format_reference_or_none, format_scope};

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest can ann --group sre",
    "crowsnest can group/sre -n shop",
    "crowsnest can sa/shop/robot -C member1 -o wide",
    "crowsnest can ann --without rolebinding/shop/admins",
    "crowsnest can sa/shop/robot --indirect",
])]
pub struct CanArgs {
    /// User, group or service account: NAME, user/NAME, group/NAME or sa/NAMESPACE/NAME
    #[arg(value_name = "SUBJECT")]
    subject: String,
    /// Group of the user; may be repeated. Groups of users are not known to clusters
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// Namespace to review [default: all]
    #[arg(short, long)]
    namespace: Option<String>,
    #[command(flatten)]
    review: ReviewArgs,
}

pub(crate) async fn run(args: CanArgs) -> anyhow::Result<ExitCode> {
    let mut spec = parse_subject(&args.subject, &args.groups)?;
    if let Some(namespace) = &args.namespace {
        spec["namespaces"] = json!([namespace]);
    }
    args.review.apply(&mut spec);
    let client = args.review.read.connection.client().await?;
    let review = reviews::request_review(&client, "SubjectRulesReview", spec).await?;
    let status = &review["status"];
    args.review.print(&review, |out| {
        let wide = args.review.output == Output::Wide;
        let rows = reviews::rows(status, "roles").into_iter().flat_map(|(change, role)| {
            role_rows(role, wide).into_iter().map(move |cells| (change, cells)).collect::<Vec<_>>()
        });
        let headers: &[&str] = if wide {
            &["CLUSTER", "NAMESPACE", "VERBS", "RESOURCES", "ROLE", "BINDING", "SUBJECT"]
        } else {
            &["CLUSTER", "NAMESPACE", "ROLE", "BINDING", "SUBJECT"]
        };
        reviews::print_table(out, headers, rows.collect(), status)
    })
}

/// The subject of a review. A name without a kind is a user.
fn parse_subject(text: &str, groups: &[String]) -> anyhow::Result<Value> {
    let mut spec = match text.split('/').collect::<Vec<_>>().as_slice() {
        ["group" | "Group", name] if !name.is_empty() => {
            return Ok(
                json!({"groups": std::iter::once(*name).chain(groups.iter().map(String::as_str)).collect::<Vec<_>>()}),
            );
        }
        ["user" | "User", name] if !name.is_empty() => json!({"user": name}),
        ["sa" | "serviceaccount" | "ServiceAccount", namespace, name] if !namespace.is_empty() && !name.is_empty() => {
            json!({"user": service_account_user(namespace, name)})
        }
        ["sa" | "serviceaccount" | "ServiceAccount", ..] | ["user" | "User" | "group" | "Group", ""] | [""] => {
            bail!("invalid subject {text:?}: expected NAME, user/NAME, group/NAME or sa/NAMESPACE/NAME")
        }
        _ => json!({"user": text}),
    };
    if !groups.is_empty() {
        spec["groups"] = json!(groups);
    }
    Ok(spec)
}

/// One line for a role; with the rules, one line for each of them.
fn role_rows(role: &Value, wide: bool) -> Vec<Vec<String>> {
    let right = [
        format_reference_or_none(role, "role"),
        format_reference_or_none(role, "binding"),
        format_reference(&role["subject"]),
    ];
    let left = [text(role, "/cluster").to_owned(), format_scope(role)];
    if !wide {
        return vec![[&left[..], &right[..]].concat()];
    }
    let rules = list(role, "rules").iter().map(reviews::format_rule);
    rules.map(|(verbs, resources)| [&left[..], &[verbs, resources], &right[..]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("ann", &["sre"], Some(json!({"user": "ann", "groups": ["sre"]})))]
    #[case("user/ann", &[], Some(json!({"user": "ann"})))]
    #[case("group/sre", &["ops"], Some(json!({"groups": ["sre", "ops"]})))]
    #[case("sa/shop/robot", &[], Some(json!({"user": "system:serviceaccount:shop:robot"})))]
    #[case("system:serviceaccount:shop:robot", &[], Some(json!({"user": "system:serviceaccount:shop:robot"})))]
    #[case::of_an_issuer("https://issuer/ann", &[], Some(json!({"user": "https://issuer/ann"})))]
    #[case("sa/robot", &[], None)]
    #[case::no_group("group/", &[], None)]
    #[case::no_user("user/", &["sre"], None)]
    #[case("", &[], None)]
    fn subjects_are_read(#[case] subject: &str, #[case] groups: &[&str], #[case] expected: Option<Value>) {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        assert_eq!(parse_subject(subject, &groups).ok(), expected);
    }

    #[test]
    fn rules_have_a_line_each() {
        let role = json!({"cluster": "m1", "scope": "Namespace", "namespace": "shop", "subject": {"kind": "User", "name": "ann"},
            "role": {"kind": "ClusterRole", "name": "view"}, "binding": {"kind": "RoleBinding", "namespace": "shop", "name": "ann"},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}, {"verbs": ["list"], "apiGroups": ["apps"], "resources": ["*"]}]});
        let lines: Vec<String> = role_rows(&role, true).iter().map(|line| line.join("|")).collect();
        assert_eq!(
            lines,
            [
                "m1|shop|get|pods|ClusterRole view|RoleBinding shop/ann|User ann",
                "m1|shop|list|*.apps|ClusterRole view|RoleBinding shop/ann|User ann",
            ]
        );
        assert_eq!(role_rows(&role, false).len(), 1);
    }
}
