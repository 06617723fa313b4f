// xterm.js writes <style> elements and style attributes, which the content security policy forbids. It accepts its document as an
// option: this one wraps the page's, and turns them into constructed style sheets and properties set by script, which are allowed.
// xterm's renderer ignores the option, so the page's own createElement is replaced while a terminal exists.

export interface StrictDocument {
  document: Document
  /** Removes the style sheets and restores the page's createElement. */
  close: () => void
}

export function strictDocument(page: Document): StrictDocument {
  const create = page.createElement.bind(page)
  const sheets = new Set<CSSStyleSheet>()
  const drop = (sheet: CSSStyleSheet) => {
    sheets.delete(sheet)
    page.adoptedStyleSheets = page.adoptedStyleSheets.filter((other) => other !== sheet)
  }
  const style = () => {
    const sheet = new CSSStyleSheet()
    sheets.add(sheet)
    page.adoptedStyleSheets = [...page.adoptedStyleSheets, sheet]
    const stand = create('span')
    stand.hidden = true
    let text = ''
    Object.defineProperty(stand, 'textContent', {
      get: () => text,
      set: (written: string) => sheet.replaceSync((text = written)),
    })
    stand.remove = () => {
      drop(sheet)
      Element.prototype.remove.call(stand)
    }
    return stand
  }
  const element = (name: string) => {
    if (name === 'style') return style()
    const made = create(name)
    made.setAttribute = (attribute: string, value: string) => {
      if (attribute === 'style') made.style.cssText = value
      else Element.prototype.setAttribute.call(made, attribute, value)
    }
    return made
  }
  const document = new Proxy(page, {
    get(target, property) {
      if (property === 'createElement') return element
      const value: unknown = Reflect.get(target, property, target)
      return typeof value === 'function' ? (value as (...given: unknown[]) => unknown).bind(target) : value
    },
  })
  const ours = element as Document['createElement']
  page.createElement = ours
  const close = () => {
    sheets.forEach(drop)
    // Other calls are passed to the browser's document.
    if (page.createElement === ours) delete (page as Partial<Document>).createElement
  }
  return { document, close }
}
