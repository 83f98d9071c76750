// Search in pages opened as files: browsers start no worker from a file, so the worker's script
// runs in a hidden frame, with the same messages. The search's own script stays as it is.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = url;
      this.started = new Promise((resolve) => script.addEventListener("load", resolve));
      inner.document.body.append(script);
    }

    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.started.then(() => inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
