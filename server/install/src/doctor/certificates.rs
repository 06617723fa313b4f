//! Checks certificates: validity period, names, and whether the control plane trusts them. Pure.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_component_base::tls;
use jiff::{SignedDuration, Timestamp};
use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::checks::Finding;
use super::shown::Chain;

/// Remaining lifetime below which a certificate is reported; a fifth of its total lifetime if that is shorter.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);
const SERVING: &str = "certificate of serve";

/// The certificates that `serve` presents.
pub(super) struct Shown<'a> {
    pub(super) address: &'a str,
    /// Chains by requested server name, or the error of the connection.
    pub(super) chains: &'a [(&'a str, Result<Chain, String>)],
    /// The CAs that the control plane trusts.
    pub(super) authorities: &'a [CertificateDer<'static>],
    /// True if `install` created the certificate.
    pub(super) ours: bool,
}

/// A problem of a certificate.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Unreadable,
    NotYet(Timestamp),
    Ended(Timestamp),
    Soon(Timestamp),
    OtherName(String),
    /// The reason that it is not trusted.
    Untrusted(String),
    AuthorityEnded(Timestamp),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable => f.write_str("it is invalid"),
            Self::NotYet(from) => write!(f, "it is not valid before {from}"),
            Self::Ended(at) => write!(f, "it expired at {at}"),
            Self::Soon(at) => write!(f, "it expires at {at}"),
            Self::OtherName(name) => write!(f, "it is not valid for {name}"),
            Self::Untrusted(why) => write!(f, "the control plane does not trust it: {why}"),
            Self::AuthorityEnded(at) => write!(f, "the CA that the control plane trusts expired at {at}"),
        }
    }
}

/// Checks the certificates as the control plane sees them when it calls `serve`.
pub(super) fn serving(shown: &Shown<'_>, now: Timestamp) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (name, chain) in shown.chains {
        let finding = match chain {
            Ok(chain) => match fault(chain, Some((name, shown.authorities)), now) {
                Ok(until) => Finding::good(SERVING, format!("valid until {until}")),
                Err(fault) => faulty(SERVING, &fault, &mend(&fault, shown.ours)),
            },
            Err(error) => Finding::warning(
                SERVING,
                format!("cannot read the certificate at {} from this machine: {error}", shown.address),
                "check that `crowsnest serve` runs with the role aggregated or webhook; if only the control plane can reach it, run doctor there",
            ),
        };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

/// Checks the client certificate of the kubeconfig.
pub(super) fn own(chain: &[CertificateDer<'static>], now: Timestamp) -> Finding {
    let what = "client certificate of this kubeconfig";
    let mend = "have its issuer renew it; `crowsnest serve` reloads the kubeconfig";
    match fault(chain, None, now) {
        Ok(until) => Finding::good(what, format!("valid until {until}")),
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
        (Fault::NotYet(_), _) => "synchronize the clocks of all machines (NTP)",
        (Fault::AuthorityEnded(_), true) => {
            "delete Secret karmada-system/crowsnest-serving and run `crowsnest install`, which creates another CA"
        }
        (_, true) => {
            "run `crowsnest install`, which creates another, and run `crowsnest serve` without --tls-cert-file"
        }
        (Fault::OtherName(name), false) => return format!("have its issuer add the name {name}"),
        (Fault::Untrusted(_), false) => {
            "run `crowsnest install --ca-file` with the CA that signed it, or use a certificate of the installed CA"
        }
        (Fault::AuthorityEnded(_), false) => {
            "run `crowsnest install --ca-file` with another CA and a certificate of it"
        }
        (_, false) => "have its issuer renew it (in the chart, the CronJob or cert-manager); `serve` reloads it",
    };
    mend.to_owned()
}

/// The expiry of a chain, for clients that request this name and trust these CAs.
fn fault(
    chain: &[CertificateDer<'static>],
    expected: Option<(&str, &[CertificateDer<'static>])>,
    now: Timestamp,
) -> Result<Timestamp, Fault> {
    let all = chain.iter().map(validity).collect::<Option<Vec<_>>>().ok_or(Fault::Unreadable)?;
    let leaf = chain.first().ok_or(Fault::Unreadable)?;
    // A chain expires with the first of its certificates.
    let (from, until) = all.into_iter().min_by_key(|(_, until)| *until).ok_or(Fault::Unreadable)?;
    if until <= now {
        return Err(Fault::Ended(until));
    }
    if from > now {
        return Err(Fault::NotYet(from));
    }
    if let Some((name, authorities)) = expected {
        verify(leaf, &chain[1..], name, authorities, now)?;
        // Rustls uses only the keys of trusted CAs; kube-apiserver checks their validity period too.
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
    let server_name = ServerName::try_from(name).map_err(|_| other())?;
    let verifier = tls::verifier(authorities.to_vec(), Arc::new(rustls::crypto::ring::default_provider()));
    let verifier = verifier.map_err(|_| untrusted(&"it has no CA"))?;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap_or_default()));
    match verifier.verify_server_cert(leaf, rest, &server_name, &[], now) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Err(other()),
        // Another CA with the same name.
        Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            Err(untrusted(&"it was signed by another CA"))
        }
        Err(error) => Err(untrusted(&error)),
    }
}

/// The validity period of a certificate.
fn validity(der: &CertificateDer<'static>) -> Option<(Timestamp, Timestamp)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    at(parsed.validity().not_before).zip(at(parsed.validity().not_after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::checks::Severity;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
    use rstest::rstest;

    /// A CA that is valid until this year; leaf certificates are valid in 2026.
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

    /// The CA that the control plane trusts.
    #[derive(Debug, Clone, Copy)]
    enum Believed {
        Its,
        ItsThatEnds(i32),
        Another,
        Itself,
        Nobody,
    }

    #[rstest]
    #[case::good("2026-06-01", "fleet.example.com", Believed::Its, "valid until 2027-01-01T00:00:00Z")]
    #[case::an_address("2026-06-01", "10.0.0.7", Believed::Its, "valid until")]
    #[case::self_signed("2026-06-01", "10.0.0.7", Believed::Itself, "valid until")]
    #[case("2026-12-15", "10.0.0.7", Believed::Its, "it expires at 2027-01-01T00:00:00Z")]
    #[case("2027-01-01", "10.0.0.7", Believed::Its, "it expired at 2027-01-01T00:00:00Z")]
    #[case("2025-12-31", "10.0.0.7", Believed::Its, "it is not valid before 2026-01-01T00:00:00Z")]
    #[case("2026-06-01", "10.0.0.8", Believed::Its, "it is not valid for 10.0.0.8")]
    #[case("2026-06-01", "b.example.com", Believed::Itself, "it is not valid for b.example.com")]
    #[case(
        "2026-06-01",
        "10.0.0.7",
        Believed::Another,
        "the control plane does not trust it: it was signed by another CA"
    )]
    #[case("2026-06-01", "10.0.0.7", Believed::Nobody, "the control plane does not trust it: it has no CA")]
    #[case(
        "2026-06-01",
        "10.0.0.7",
        Believed::ItsThatEnds(2026),
        "the CA that the control plane trusts expired at 2026-01-01"
    )]
    fn serving_certificates_are_checked(
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
        // An expired CA from before a rotation must not be reported.
        let authorities = if until < 2030 { authorities[1..].to_vec() } else { authorities };
        let chains = [(name, Ok(chain))];
        for ours in [true, false] {
            let found = serving(&Shown { address: "h:8443", chains: &chains, authorities: &authorities, ours }, now);
            let [found] = found.as_slice() else { panic!("{found:?}") };
            assert!(found.found.starts_with(expected), "{found:?}");
            assert_eq!(found.mend.is_empty(), found.severity == Severity::Good, "{found:?}");
            assert_eq!(found.severity == Severity::Warning, expected.starts_with("it expires"), "{found:?}");
            assert_eq!(
                found.mend.contains("run `crowsnest install`"),
                ours && found.mend.contains("which creates"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn findings_are_reported_once() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let (its, issuer) = authority(2030);
        let chain = vec![leaf(Some(&issuer))];
        let findings_of = |chains: &[(&str, Result<Chain, String>)]| {
            let shown = Shown { address: "h:8443", chains, authorities: std::slice::from_ref(&its), ours: false };
            serving(&shown, now).into_iter().map(|found| (found.severity, found.found)).collect::<Vec<_>>()
        };
        let good = (Severity::Good, "valid until 2027-01-01T00:00:00Z".to_owned());
        let both = [("10.0.0.7", Ok(chain.clone())), ("fleet.example.com", Ok(chain.clone()))];
        assert_eq!(findings_of(&both), std::slice::from_ref(&good));
        let one = [("10.0.0.7", Ok(chain.clone())), ("b", Ok(chain))];
        assert_eq!(findings_of(&one), [good, (Severity::Broken, "it is not valid for b".to_owned())]);
        let silent = [("a", Err("connection refused".to_owned())), ("b", Err("connection refused".to_owned()))];
        let expected = "cannot read the certificate at h:8443 from this machine: connection refused";
        assert_eq!(findings_of(&silent), [(Severity::Warning, expected.to_owned())]);
    }

    #[rstest]
    #[case("2026-06-01T00:00:00Z", Severity::Good, "valid until 2027-01-01T00:00:00Z")]
    #[case("2026-12-15T00:00:00Z", Severity::Warning, "it expires at 2027-01-01T00:00:00Z")]
    #[case("2027-02-01T00:00:00Z", Severity::Broken, "it expired at 2027-01-01T00:00:00Z")]
    fn client_certificate_is_checked(#[case] now: Timestamp, #[case] severity: Severity, #[case] expected: &str) {
        let found = own(&[leaf(None)], now);
        assert_eq!((found.severity, found.found.as_str()), (severity, expected));
        assert_eq!(!found.mend.is_empty(), severity != Severity::Good);
    }
}
