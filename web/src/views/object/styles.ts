// xterm.js writes <style> elements and style attributes, which our content security policy forbids. It takes the document it works on
// as an option: this one is the page's own, but what is written so becomes style sheets and properties made by script, which are allowed.
// What draws its rows takes no notice of the option: while a terminal is there, the page itself makes elements so.

export interface StrictDocument {
  document: Document
  /** Takes its style sheets away again, and gives the page its own way back. */
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
    // What is beneath is the browser's.
    if (page.createElement === ours) delete (page as Partial<Document>).createElement
  }
  return { document, close }
}
