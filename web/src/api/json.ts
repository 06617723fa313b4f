// JSON without loss of precision: an integer that a number cannot represent (an int64 beyond 2^53) becomes a bigint.

/**
 * A string or a number. Strings are matched so that digits inside them are not. A colon after a number is part of the token, so that a
 * number in the place of a key stays a number, which `JSON.parse` refuses.
 */
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:\s*:)?/g
/** Enough digits for an integer that a number cannot represent. */
const MANY_DIGITS = /\d{16}/
const INTEGER = /^-?(?:0|[1-9]\d*)$/

/** Parses JSON. Throws a SyntaxError as `JSON.parse` does. */
export function parseJson(text: string): unknown {
  if (!MANY_DIGITS.test(text)) return JSON.parse(text)
  const mark = newMark()
  const marked = text.replace(TOKEN, (token) => (INTEGER.test(token) && !Number.isSafeInteger(Number(token)) ? `"${mark}${token}"` : token))
  return JSON.parse(marked, (_, value: unknown) => (typeof value === 'string' && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value))
}

/** Serializes JSON; bigints as integers. */
export function printJson(value: unknown, indent?: number): string {
  const mark = newMark()
  let isMarked = false
  const text = JSON.stringify(
    value,
    (_, item: unknown) => {
      if (typeof item !== 'bigint') return item
      isMarked = true
      return `${mark}${item}`
    },
    indent,
  )
  return isMarked ? text.replace(new RegExp(`"${mark}(-?\\d+)"`, 'g'), '$1') : text
}

/** The JSON body of a response. */
export async function readJson<T>(response: Response): Promise<T> {
  return parseJson(await response.text()) as T
}

/** A random prefix that no string of a document has. */
const newMark = () => `bigint-${crypto.getRandomValues(new Uint32Array(4)).join('-')}:`
