//! Generates RSA keys: Kubernetes clusters sign service account tokens with RS256, and `ring` signs with RSA keys
//! but cannot generate them. The crate `rsa` has RUSTSEC-2023-0071; `num-bigint` is a dependency of x509-parser
//! already.

use num_bigint::BigUint;
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{Error, Result};

/// Bits of each prime; the modulus has twice as many.
const PRIME_BITS: usize = 1024;
const EXPONENT: u32 = 65_537;
/// Miller-Rabin rounds; far more than random candidates of this size need.
const MILLER_RABIN_ROUNDS: usize = 8;
/// Range above a random start that is searched for a prime before a new start is drawn.
const MAX_OFFSET: u32 = 4096;
/// Upper bound of the small primes whose multiples are skipped before the expensive test.
const MAX_SMALL_PRIME: u32 = 4000;

/// Generates a private key in PKCS #1 (DER).
pub(super) fn generate() -> Result<Vec<u8>> {
    let random = SystemRandom::new();
    let exponent = BigUint::from(EXPONENT);
    let small_primes = list_small_primes();
    loop {
        let (p, q) = (generate_prime(&random, &small_primes)?, generate_prime(&random, &small_primes)?);
        let (p, q) = if p > q { (p, q) } else { (q, p) };
        let one = BigUint::from(1u32);
        let (p1, q1) = (&p - &one, &q - &one);
        // The least common multiple keeps `d` below the bound of FIPS 186-4.
        let totient = &p1 * &q1 / gcd(&p1, &q1);
        let (Some(d), Some(coefficient)) = (exponent.modinv(&totient), q.modinv(&p)) else { continue };
        let n = &p * &q;
        if p == q || n.bits() != (PRIME_BITS * 2) as u64 {
            continue;
        }
        let numbers = [
            BigUint::from(0u32),
            n,
            exponent.clone(),
            d.clone(),
            p.clone(),
            q.clone(),
            &d % &p1,
            &d % &q1,
            coefficient,
        ];
        return Ok(encode_sequence(&numbers));
    }
}

fn gcd(a: &BigUint, b: &BigUint) -> BigUint {
    let (mut a, mut b) = (a.clone(), b.clone());
    while b.bits() > 0 {
        (a, b) = (b.clone(), a % b);
    }
    a
}

fn list_small_primes() -> Vec<u32> {
    (3..MAX_SMALL_PRIME)
        .step_by(2)
        .filter(|n| (3..).step_by(2).take_while(|d| d * d <= *n).all(|d| n % d != 0))
        .collect()
}

fn fill_random(random: &SystemRandom, bytes: &mut [u8]) -> Result<()> {
    random.fill(bytes).map_err(|_| Error::Key("cannot get random bytes".into()))
}

fn generate_prime(random: &SystemRandom, small_primes: &[u32]) -> Result<BigUint> {
    let mut bytes = [0u8; PRIME_BITS / 8];
    loop {
        fill_random(random, &mut bytes)?;
        // The two top bits are set, so that the product has its full length. The last bit is set, so that the number is
        // odd.
        bytes[0] |= 0xc0;
        bytes[PRIME_BITS / 8 - 1] |= 1;
        let start = BigUint::from_bytes_be(&bytes);
        let remainders: Vec<(u32, u32)> = small_primes
            .iter()
            .map(|prime| (*prime, (&start % *prime).to_u32_digits().first().copied().unwrap_or(0)))
            .collect();
        for offset in (0..MAX_OFFSET).step_by(2) {
            if remainders.iter().any(|(prime, remainder)| (remainder + offset) % prime == 0) {
                continue;
            }
            let candidate = &start + offset;
            let is_coprime = (&candidate - 1u32) % EXPONENT != BigUint::from(0u32);
            if is_coprime && is_prime(random, &candidate)? {
                return Ok(candidate);
            }
        }
    }
}

/// Miller-Rabin primality test.
fn is_prime(random: &SystemRandom, candidate: &BigUint) -> Result<bool> {
    let one = BigUint::from(1u32);
    let minus_one = candidate - &one;
    let trailing_zeros = minus_one.trailing_zeros().unwrap_or(0);
    let odd_part = &minus_one >> trailing_zeros;
    'rounds: for _ in 0..MILLER_RABIN_ROUNDS {
        let mut bytes = [0u8; PRIME_BITS / 8];
        fill_random(random, &mut bytes)?;
        let base = BigUint::from_bytes_be(&bytes) % (candidate - 3u32) + 2u32;
        let mut x = base.modpow(&odd_part, candidate);
        if x == one || x == minus_one {
            continue;
        }
        for _ in 1..trailing_zeros {
            x = &x * &x % candidate;
            if x == minus_one {
                continue 'rounds;
            }
        }
        return Ok(false);
    }
    Ok(true)
}

fn push_length(out: &mut Vec<u8>, length: usize) {
    match length {
        0..0x80 => out.push(length as u8),
        _ => {
            let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|b| *b == 0).collect();
            out.push(0x80 | bytes.len() as u8);
            out.extend(bytes);
        }
    }
}

/// Encodes a DER sequence of integers.
fn encode_sequence(numbers: &[BigUint]) -> Vec<u8> {
    let mut content = Vec::new();
    for number in numbers {
        let mut bytes = number.to_bytes_be();
        if bytes[0] & 0x80 != 0 {
            bytes.insert(0, 0);
        }
        content.push(2);
        push_length(&mut content, bytes.len());
        content.extend(bytes);
    }
    let mut out = vec![0x30];
    push_length(&mut out, content.len());
    out.extend(content);
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn generated_keys_are_accepted_by_ring() {
        ring::signature::RsaKeyPair::from_der(&super::generate().unwrap()).unwrap();
    }
}
