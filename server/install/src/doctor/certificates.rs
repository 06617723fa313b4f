//! What certificates mean: whether they hold, for how long, for whom, and whether they are believed by those who have to. Pure.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, RootCertStore};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::judge::Finding;
use super::shown::Chain;

/// So much is left at least, or a fifth of the time that a certificate holds where that is less.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);
const SERVING: &str = "certificate of serve";

/// What `serve` shows, and to whom.
pub(super) struct Shown<'a> {
    pub(super) address: &'a str,
    /// By the name that was asked for; else why nothing is shown.
    pub(super) chains: &'a [(&'a str, Result<Chain, String>)],
    /// Whom the control plane believes.
    pub(super) authorities: &'a [CertificateDer<'static>],
    /// `install` made it.
    pub(super) ours: bool,
}

/// What is wrong with a certificate.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Unreadable,
    NotYet(Timestamp),
    Ended(Timestamp),
    Soon(Timestamp),
    OtherName(String),
    /// Why it is not believed.
    Untrusted(String),
    AuthorityEnded(Timestamp),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable => f.write_str("it can't be read"),
            Self::NotYet(from) => write!(f, "it does not hold before {from}"),
            Self::Ended(at) => write!(f, "it ended at {at}"),
            Self::Soon(at) => write!(f, "it ends at {at}"),
            Self::OtherName(name) => write!(f, "it is not for {name}"),
            Self::Untrusted(why) => write!(f, "the control plane does not believe it: {why}"),
            Self::AuthorityEnded(at) => write!(f, "the authority that the control plane believes ended at {at}"),
        }
    }
}

/// What the control plane meets when it calls `serve`.
pub(super) fn serving(shown: &Shown<'_>, now: Timestamp) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (name, chain) in shown.chains {
        let finding = match chain {
            Ok(chain) => match fault(chain, Some((name, shown.authorities)), now) {
                Ok(until) => Finding::good(SERVING, format!("good until {until}")),
                Err(fault) => faulty(SERVING, &fault, &mend(&fault, shown.ours)),
            },
            Err(error) => Finding::warning(
                SERVING,
                format!("nothing is shown at {} to whoever asks from here: {error}", shown.address),
                "see that `crowsnest serve` runs with the role aggregated or webhook; where nobody but the control plane reaches it, ask from there",
            ),
        };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

/// What we are known by to the control plane.
pub(super) fn own(chain: &[CertificateDer<'static>], now: Timestamp) -> Finding {
    let what = "client certificate of this kubeconfig";
    let mend =
        "have another issued by whoever issued it; a `crowsnest serve` that has this kubeconfig reads it at its start";
    match fault(chain, None, now) {
        Ok(until) => Finding::good(what, format!("good until {until}")),
        Err(fault) => faulty(what, &fault, mend),
    }
}

fn faulty(what: &str, fault: &Fault, mend: &str) -> Finding {
    match fault {
        Fault::Soon(_) => Finding::warning(what, fault.to_string(), mend),
        _ => Finding::broken(what, fault.to_string(), mend),
    }
}

fn mend(fault: &Fault, ours: bool) -> String {
    let mend = match (fault, ours) {
        (Fault::NotYet(_), _) => "let all machines follow a time server (NTP)",
        (Fault::AuthorityEnded(_), true) => {
            "delete Secret karmada-system/crowsnest-serving and run `crowsnest install`, which makes another authority"
        }
        (_, true) => {
            "run `crowsnest install`, which makes another, and let `crowsnest serve` show that one: without --tls-cert-file"
        }
        (Fault::OtherName(name), false) => return format!("have it issued for {name}, too, by whoever issued it"),
        (Fault::Untrusted(_), false) => {
            "run `crowsnest install --ca-file` with the authority that signed it, or show one of that which is installed"
        }
        (Fault::AuthorityEnded(_), false) => "run `crowsnest install --ca-file` with another, and issue it by that",
        (_, false) => {
            "have another issued by whoever issued it (of the chart: its CronJob, or cert-manager); `serve` reads it again by itself"
        }
    };
    mend.to_owned()
}

/// Until when a chain holds, for whoever asks for that name and believes these authorities.
fn fault(
    chain: &[CertificateDer<'static>],
    asked: Option<(&str, &[CertificateDer<'static>])>,
    now: Timestamp,
) -> Result<Timestamp, Fault> {
    let all = chain.iter().map(validity).collect::<Option<Vec<_>>>().ok_or(Fault::Unreadable)?;
    let leaf = chain.first().ok_or(Fault::Unreadable)?;
    // A chain ends with the first of its links.
    let (from, until) = all.into_iter().min_by_key(|(_, until)| *until).ok_or(Fault::Unreadable)?;
    if until <= now {
        return Err(Fault::Ended(until));
    }
    if from > now {
        return Err(Fault::NotYet(from));
    }
    if let Some((name, authorities)) = asked {
        verify(leaf, &chain[1..], name, authorities, now)?;
        // A verifier asks authorities for their keys alone; kube-apiserver looks at their time, too.
        let ends = authorities.iter().filter_map(validity).map(|(_, until)| until).max();
        if let Some(ended) = ends.filter(|ends| *ends <= now) {
            return Err(Fault::AuthorityEnded(ended));
        }
    }
    match until.duration_since(now) < SOON.min(until.duration_since(from) / 5) {
        true => Err(Fault::Soon(until)),
        false => Ok(until),
    }
}

fn verify(
    leaf: &CertificateDer<'static>,
    rest: &[CertificateDer<'static>],
    name: &str,
    authorities: &[CertificateDer<'static>],
    now: Timestamp,
) -> Result<(), Fault> {
    let untrusted = |why: &dyn std::fmt::Display| Fault::Untrusted(why.to_string());
    let other = || Fault::OtherName(name.to_owned());
    let asked = ServerName::try_from(name).map_err(|_| other())?;
    if authorities.contains(leaf) {
        // It vouches for itself, which Go bears with.
        let parsed = ParsedCertificate::try_from(leaf).map_err(|error| untrusted(&error))?;
        return rustls::client::verify_server_name(&parsed, &asked).map_err(|_| other());
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    let verifier = WebPkiServerVerifier::builder(Arc::new(roots)).build();
    let verifier = verifier.map_err(|_| untrusted(&"it has no authority to judge it by"))?;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap_or_default()));
    match verifier.verify_server_cert(leaf, rest, &asked, &[], now) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Err(other()),
        // The other one may have the same name.
        Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            Err(untrusted(&"another authority signed it"))
        }
        Err(error) => Err(untrusted(&error)),
    }
}

/// From when to when a certificate holds.
fn validity(der: &CertificateDer<'static>) -> Option<(Timestamp, Timestamp)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    at(parsed.validity().not_before).zip(at(parsed.validity().not_after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::judge::Severity;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
    use rstest::rstest;

    /// Certificates of 2026; their authorities are of these years.
    fn authority(until: i32) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 1, 1));
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        (der, Issuer::new(params, key))
    }

    fn leaf(issuer: Option<&Issuer<'static, KeyPair>>) -> CertificateDer<'static> {
        let names = ["fleet.example.com", "10.0.0.7"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2027, 1, 1));
        let key = KeyPair::generate().unwrap();
        let signed = match issuer {
            Some(issuer) => params.signed_by(&key, issuer),
            None => params.self_signed(&key),
        };
        signed.unwrap().der().clone()
    }

    /// Whom the control plane believes.
    #[derive(Debug, Clone, Copy)]
    enum Believed {
        Its,
        ItsThatEnds(i32),
        Another,
        Itself,
        Nobody,
    }

    #[rstest]
    #[case::good("2026-06-01", "fleet.example.com", Believed::Its, "good until 2027-01-01T00:00:00Z")]
    #[case::an_address("2026-06-01", "10.0.0.7", Believed::Its, "good until")]
    #[case::vouching_for_itself("2026-06-01", "10.0.0.7", Believed::Itself, "good until")]
    #[case("2026-12-15", "10.0.0.7", Believed::Its, "it ends at 2027-01-01T00:00:00Z")]
    #[case("2027-01-01", "10.0.0.7", Believed::Its, "it ended at 2027-01-01T00:00:00Z")]
    #[case("2025-12-31", "10.0.0.7", Believed::Its, "it does not hold before 2026-01-01T00:00:00Z")]
    #[case("2026-06-01", "10.0.0.8", Believed::Its, "it is not for 10.0.0.8")]
    #[case("2026-06-01", "b.example.com", Believed::Itself, "it is not for b.example.com")]
    #[case(
        "2026-06-01",
        "10.0.0.7",
        Believed::Another,
        "the control plane does not believe it: another authority signed it"
    )]
    #[case("2026-06-01", "10.0.0.7", Believed::Nobody, "the control plane does not believe it: it has no authority")]
    #[case(
        "2026-06-01",
        "10.0.0.7",
        Believed::ItsThatEnds(2026),
        "the authority that the control plane believes ended at 2026-01-01"
    )]
    fn what_is_shown_is_judged(
        #[case] today: jiff::civil::Date,
        #[case] name: &str,
        #[case] believed: Believed,
        #[case] expected: &str,
    ) {
        let now = today.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
        let until = if let Believed::ItsThatEnds(year) = believed { year } else { 2030 };
        let (its, issuer) = authority(until);
        let chain = vec![leaf((!matches!(believed, Believed::Itself)).then_some(&issuer))];
        let authorities = match believed {
            Believed::Its | Believed::ItsThatEnds(_) => vec![authority(2031).0, its],
            Believed::Another => vec![authority(2031).0],
            Believed::Itself => chain.clone(),
            Believed::Nobody => Vec::new(),
        };
        // One that is left from before holds no longer than the one that counts.
        let authorities = if until < 2030 { authorities[1..].to_vec() } else { authorities };
        let chains = [(name, Ok(chain))];
        for ours in [true, false] {
            let found = serving(&Shown { address: "h:8443", chains: &chains, authorities: &authorities, ours }, now);
            let [found] = found.as_slice() else { panic!("{found:?}") };
            assert!(found.found.starts_with(expected), "{found:?}");
            assert_eq!(found.mend.is_empty(), found.severity == Severity::Good, "{found:?}");
            assert_eq!(found.severity == Severity::Warning, expected.starts_with("it ends"), "{found:?}");
            assert_eq!(
                found.mend.contains("run `crowsnest install`"),
                ours && found.mend.contains("which makes"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn each_name_is_told_of_once() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let (its, issuer) = authority(2030);
        let chain = vec![leaf(Some(&issuer))];
        let told = |chains: &[(&str, Result<Chain, String>)]| {
            let shown = Shown { address: "h:8443", chains, authorities: std::slice::from_ref(&its), ours: false };
            serving(&shown, now).into_iter().map(|found| (found.severity, found.found)).collect::<Vec<_>>()
        };
        let good = (Severity::Good, "good until 2027-01-01T00:00:00Z".to_owned());
        let both = [("10.0.0.7", Ok(chain.clone())), ("fleet.example.com", Ok(chain.clone()))];
        assert_eq!(told(&both), std::slice::from_ref(&good));
        let one = [("10.0.0.7", Ok(chain.clone())), ("b", Ok(chain))];
        assert_eq!(told(&one), [good, (Severity::Broken, "it is not for b".to_owned())]);
        let silent = [("a", Err("connection refused".to_owned())), ("b", Err("connection refused".to_owned()))];
        let expected = "nothing is shown at h:8443 to whoever asks from here: connection refused";
        assert_eq!(told(&silent), [(Severity::Warning, expected.to_owned())]);
    }

    #[rstest]
    #[case("2026-06-01T00:00:00Z", Severity::Good, "good until 2027-01-01T00:00:00Z")]
    #[case("2026-12-15T00:00:00Z", Severity::Warning, "it ends at 2027-01-01T00:00:00Z")]
    #[case("2027-02-01T00:00:00Z", Severity::Broken, "it ended at 2027-01-01T00:00:00Z")]
    fn ours_ends_too(#[case] now: Timestamp, #[case] severity: Severity, #[case] expected: &str) {
        let found = own(&[leaf(None)], now);
        assert_eq!((found.severity, found.found.as_str()), (severity, expected));
        assert_eq!(found.mend.contains("another"), severity != Severity::Good);
    }
}
